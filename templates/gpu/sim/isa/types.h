/* What a program, a wave and a launch are.  Layouts are shared with rlxpy/backends/gpu/sim/isa/records.py, which checks their sizes. */
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef short i16;
typedef unsigned int u32; typedef int i32; typedef unsigned long long u64; typedef long long i64;
typedef float f32; typedef double f64;

enum { LANES = 64, SGPRS = 128, VGPRS = 512 };  /* accumulation registers a0.. are v256.. */
enum { VCC = 106, TTMP = 108, NULL_SGPR = 124, M0 = 125, EXEC = 126 };
typedef u64 Lanes[LANES];  /* one value of up to 64 bits for each lane */

/* One source operand.  sel, sel_hi: a part of a register, for the low and the high half of packed instructions. */
typedef struct { u32 kind, reg, sel, sel_hi, flags, type; u64 value; } Src;
enum { SRC_NONE, SRC_VGPR, SRC_SGPR, SRC_CONST, SRC_SCC, SRC_VCCZ, SRC_EXECZ };
enum { WHOLE, WORD_0, WORD_1, BYTE_0, BYTE_1, BYTE_2, BYTE_3, DWORD_0, DWORD_1 };
enum { NEG = 1, ABS = 2, NEG_HI = 4, SEXT = 8, WIDEN = 16 };

typedef struct {
  u32 unit, op, flags;
  u32 dst, dst_sel, dst_rest;  /* dst_rest: what becomes of the bits that dst_sel leaves out */
  u32 mask_out, mask_in;  /* SGPRs of lane masks */
  u32 omod, perm;  /* perm: 1 + the index of a table that says which lane each lane reads its first source from */
  u64 writable;  /* lanes that DPP's row and bank masks let through */
  Src src[4];
  i64 offset;
  u32 args[12];  /* what they mean is each unit's business */
  u64 pc;
} Ins;
enum { NO_REG = 255 };
enum { CLAMP = 1, PACKED = 2, PAIRED = 4, BOUND_CTRL = 8, FETCH_INACTIVE = 16, PACKED_F32 = 32, WRITES_EXEC = 64, NO_DST = 128 };
enum { KEEP, ZERO, SIGN };
enum { OMOD_NONE, OMOD_MUL2, OMOD_MUL4, OMOD_DIV2 };
enum { DENORM_F32 = 0x30, DENORM_F64 = 0xc0 };  /* MODE register: f16 follows f64 */

enum Fault { NO_FAULT, GLOBAL_RANGE, LDS_RANGE, LDS_RACE, LDS_UNINITIALISED, UNALIGNED, SCRATCH_RANGE, DIVERGENT_BARRIER, DEADLOCK, ENDLESS, UNKNOWN, TRAP, JUMP, MODE, INDEX };
typedef struct { u32 kind, block[3], wave, lane; u64 pc, address, nbytes, other; } Report;

/* Who touched one byte of LDS last, in which interval between barriers.  Two readers of one interval are told apart from one.
   suspect: 1 + the place of a load that read what another wave's atomic wrote: a race, unless it begins a loop of compare and swap. */
typedef struct { u32 write_epoch, read_epoch, suspect; u16 writer, reader, suspect_wave; u8 atomic, written; } Shadow;
enum { MANY = 0xffff };

typedef struct Launch Launch;
typedef struct { u8* lds; Shadow* shadow; u32 id[3], epoch, suspects; } Block;  /* epoch: barriers passed */

typedef struct {
  u32 s[SGPRS];
  u32 v[VGPRS][LANES];
  u32 lanes, scc, mode, indexing, state, number, signalled, signal_epoch;  /* indexing: whether M0 shifts vector registers; signal_epoch: the block's when this wave signalled, until it has waited */
  u64 ip, count, barrier, barrier_pc;  /* barrier: the instruction it signalled with */
  u8* scratch;
  Block* block;
  Launch* launch;
} Wave;
enum { READY, WAITING, DONE };
enum { NO_EPOCH = 0xffffffff };
enum { STEP_ON, STEP_YIELD, STEP_FAULT };  /* what an instruction asks of whoever runs the wave */

struct Launch {
  const Ins* code; u64 ncode;
  const i8* perms;  /* tables of LANES entries; -1 is no lane */
  const u64* ranges; u64 nranges;  /* (first address, one past the last), ascending */
  u64 first_pc; const i32* index_of_word; u64 nwords;  /* from (pc - first_pc) / 4 to an index into code, or -1 */
  u64 entry; u64 budget;
  u32 grid[3], block[3], lanes, lds_nbytes, scratch_nbytes, mode;
  u32 nuser; u32 user[32];
  u32 system[5];  /* SGPRs of the block's x, y, z, the work-group's facts and the scratch offset, or NO_REG */
  u32 ids_in_ttmp, packed_ids, id_count;
  Wave* waves; u8* lds; Shadow* shadow; u8* scratch;
  u64 scratch_base;
  u64 executed, barriers;
  Report report;
};
