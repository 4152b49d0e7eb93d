// Several numbers that are read or written at once, at places in memory that are multiples of their size.
struct alignas(4) rlx_two { u16 of[2]; };
struct alignas(16) rlx_eight { u16 of[8]; };
struct alignas(16) rlx_four { f32 of[4]; };
