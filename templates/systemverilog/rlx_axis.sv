// One loop of a nest: counts 0 .. SIZE-1 and round again, by one in every cycle that `step` is high.
module rlx_axis #(
    parameter int SIZE = 1
) (
    input  logic clk, rst, step,
    output logic [31:0] index,
    output logic last
);
    localparam int BITS = SIZE > 1 ? $clog2(SIZE) : 1;
    localparam int FINAL = SIZE - 1;

    logic [BITS-1:0] count;

    assign index = 32'(count);
    assign last = count == FINAL[BITS-1:0];

    always_ff @(posedge clk)
        if (rst) count <= '0;
        else if (step) count <= last ? '0 : count + 1'b1;
endmodule
