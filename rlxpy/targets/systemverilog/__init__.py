"""SystemVerilog of integer models: one loop nest after another, each with memories of its own."""
