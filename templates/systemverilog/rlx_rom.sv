// DEPTH numbers of WIDTH bits that a $readmemh file gives: what is read is there in the next cycle.
module rlx_rom #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 1,
    parameter CONTENTS = ""
) (
    input  logic clk,
    input  logic [31:0] read_addr,
    output logic [WIDTH-1:0] read_data
);
    localparam int BITS = DEPTH > 1 ? $clog2(DEPTH) : 1;

    logic [WIDTH-1:0] data [0:DEPTH-1];

    initial $readmemh(CONTENTS, data);

    always_ff @(posedge clk)
        read_data <= data[read_addr[BITS-1:0]];
endmodule
