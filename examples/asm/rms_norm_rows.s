// RMSNorm of rows, by hand, for CDNA 2 and 3 (gfx90a, gfx942): a block is four waves of 64 lanes, and it does one row.
//
//     void rms_norm_rows(const float *x, const float *scale, float *out, unsigned cols, float eps)       grid: rows; block: 256
//     out[r, c] = x[r, c] / sqrt(mean of squares of row r + eps) * scale[c]
//
// Each lane adds up squares of every 256th column, each wave adds its lanes, and the four waves meet in LDS.  A row may have up to
// 2^30 - 1 columns: offsets inside of it have 32 bits.

	.text
	.globl	rms_norm_rows
	.p2align 8
	.type	rms_norm_rows,@function

// ---- registers ----------------------------------------------------------------------------------------------------------------
// s[0:1] address of the arguments;  s2 number of the block, which is the row;  v0 number of the lane in the block
// s[4:5] x, s[6:7] scale, s[8:9] out;  s10 cols;  s11 eps;  s[12:13] where the row begins;  s14 sum of a wave
// v1 sum of squares;  v2 column;  v3 its offset in bytes;  v4, v5 x[c] and scale[c];  v6, v7 scratch;  v[8:11] sums of the waves
//
// These chips leave some waiting to the program.  s_nop n waits n + 1 cycles: two between a vector instruction that writes a register and
// a DPP one that reads it from another lane, two (gfx942) between one that writes a scalar register and a vector instruction that reads it.

	.macro	FIRST_COLUMN
	s_mov_b64	exec, -1                // all lanes awake
	v_mov_b32	v2, v0
	.endm

// Lanes whose column is past the end of the row go to sleep, and leave when all are asleep.
	.macro	EACH_COLUMN done
	v_cmp_gt_u32	vcc, s10, v2
	s_and_b64	exec, exec, vcc
	s_cbranch_execz	\done
	v_lshlrev_b32	v3, 2, v2
	v_add_u32	v2, 0x100, v2
	global_load_dword	v4, v3, s[4:5]
	.endm

	.macro	ADD_LANE how:vararg
	s_nop	1
	v_add_f32_dpp	v1, v1, v1 \how bank_mask:0xf
	.endm

rms_norm_rows:
	s_load_dwordx4	s[4:7], s[0:1], 0x0     // x, scale
	s_load_dwordx4	s[8:11], s[0:1], 0x10   // out, cols, eps
	s_waitcnt	lgkmcnt(0)
	s_mul_i32	s12, s2, s10            // an array may have more than 2^32 elements
	s_mul_hi_u32	s13, s2, s10
	s_lshl_b64	s[12:13], s[12:13], 2
	s_add_u32	s4, s4, s12
	s_addc_u32	s5, s5, s13
	s_add_u32	s8, s8, s12
	s_addc_u32	s9, s9, s13

	v_mov_b32	v1, 0
	FIRST_COLUMN
.Lsquares:
	EACH_COLUMN .Lsquares_done
	s_waitcnt	vmcnt(0)
	v_fmac_f32	v1, v4, v4
	s_branch	.Lsquares
.Lsquares_done:
	s_mov_b64	exec, -1

// Lane 63 gets the sum of all 64.  A wave is four rows of 16 lanes: after four steps each lane has the sum of its row up to itself; then
// lane 15 of a row goes to the row behind it (rows 1 and 3: mask 0xa), and lane 31 to both rows behind (rows 2 and 3: mask 0xc).
	ADD_LANE row_shr:1 row_mask:0xf
	ADD_LANE row_shr:2 row_mask:0xf
	ADD_LANE row_shr:4 row_mask:0xf
	ADD_LANE row_shr:8 row_mask:0xf
	ADD_LANE row_bcast:15 row_mask:0xa
	ADD_LANE row_bcast:31 row_mask:0xc
	s_nop	0
	v_readlane_b32	s14, v1, 63

// One lane of each wave writes its wave's sum, and behind the barrier all lanes read all four.
	v_lshrrev_b32	v6, 6, v0               // number of the wave
	v_lshlrev_b32	v6, 2, v6
	v_mov_b32	v7, s14
	s_mov_b64	exec, 1
	ds_write_b32	v6, v7
	s_mov_b64	exec, -1
	s_waitcnt	lgkmcnt(0)
	s_barrier
	v_mov_b32	v6, 0
	ds_read_b128	v[8:11], v6
	v_cvt_f32_u32	v6, s10
	v_rcp_f32	v7, v6                  // 1 / cols, and a step of Newton's to its last bit
	s_nop	0
	v_fma_f32	v6, -v6, v7, 1.0
	v_fmac_f32	v7, v6, v7
	s_waitcnt	lgkmcnt(0)
	v_add_f32	v8, v8, v9
	v_add_f32	v8, v8, v10
	v_add_f32	v8, v8, v11
	v_fma_f32	v8, v8, v7, s11         // mean of squares + eps
	v_rsq_f32	v8, v8

	FIRST_COLUMN
.Lwrite:
	EACH_COLUMN .Lwrite_done
	global_load_dword	v5, v3, s[6:7]
	s_waitcnt	vmcnt(1)                // x[c] is there, scale[c] on its way
	v_mul_f32	v4, v4, v8
	s_waitcnt	vmcnt(0)
	v_mul_f32	v4, v4, v5
	global_store_dword	v3, v4, s[8:9]
	s_branch	.Lwrite
.Lwrite_done:
	s_endpgm
	.size	rms_norm_rows, .-rms_norm_rows

// ---- for the hardware: how the kernel is started -------------------------------------------------------------------------------
	.section	.rodata,"a",@progbits
	.p2align 6
	.amdhsa_kernel rms_norm_rows
		.amdhsa_user_sgpr_kernarg_segment_ptr 1         // in s[0:1]
		.amdhsa_user_sgpr_count 2                       // so that the block's number is in s2
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_vgpr_workitem_id 0               // v0 is x alone
		.amdhsa_kernarg_size 32
		.amdhsa_group_segment_fixed_size 16             // four sums
		.amdhsa_float_denorm_mode_32 3                  // small numbers are kept, as everywhere in rlxpy
		.amdhsa_next_free_vgpr 12
		.amdhsa_accum_offset 12                         // vector registers before those of the matrix unit, of which there are none
		.amdhsa_next_free_sgpr 16
	.end_amdhsa_kernel

// ---- for the driver, and for rlxpy, which holds the kernel's declaration to it ---------------------------------------------------
	.amdgpu_metadata
---
amdhsa.version: [ 1, 2 ]
amdhsa.kernels:
  - .name: rms_norm_rows
    .symbol: rms_norm_rows.kd
    .kernarg_segment_size: 32
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 22
    .vgpr_count: 12
    .max_flat_workgroup_size: 256
    .args:
      - { .name: x, .size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global }
      - { .name: scale, .size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global }
      - { .name: out, .size: 8, .offset: 16, .value_kind: global_buffer, .address_space: global }
      - { .name: x_last, .size: 4, .offset: 24, .value_kind: by_value }
      - { .name: eps, .size: 4, .offset: 28, .value_kind: by_value }
...
	.end_amdgpu_metadata
