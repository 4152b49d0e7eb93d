// What a kernel of ABI 2 stands on: element types by the names that kernels in C know, without any header.
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;
typedef float f32; typedef double f64;
struct c64 { f32 re, im; };
struct c128 { f64 re, im; };
__device__ inline i64 rlx_floor_quotient(i64 a, i64 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
