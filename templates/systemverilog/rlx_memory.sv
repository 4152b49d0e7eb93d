// DEPTH numbers of WIDTH bits: one is written and one is read in a cycle, and what is read is there in the next.
module rlx_memory #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 1
) (
    input  logic clk, write,
    input  logic [31:0] write_addr, read_addr,
    input  logic [WIDTH-1:0] write_data,
    output logic [WIDTH-1:0] read_data
);
    localparam int BITS = DEPTH > 1 ? $clog2(DEPTH) : 1;

    logic [WIDTH-1:0] data [0:DEPTH-1];

    always_ff @(posedge clk) begin
        if (write) data[write_addr[BITS-1:0]] <= write_data;
        read_data <= data[read_addr[BITS-1:0]];
    end
endmodule
