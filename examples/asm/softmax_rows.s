// Softmax of rows, by hand, for RDNA 3 (gfx11): a block is one wave of 32 lanes, and it does one row.
//
//     void softmax_rows(const float *x, float *out, unsigned cols)        grid: rows; block: 32; out[r, c] = exp(x[r, c] - max) / sum
//
// The row is walked three times, 32 columns at a step: for the largest value, for the sum of powers, and to write.  Nothing is kept
// between the walks but two numbers a lane, so a row may have any number of columns, up to 2^30 - 1: offsets inside of it have 32 bits.

	.text
	.globl	softmax_rows
	.p2align 8
	.type	softmax_rows,@function

// ---- registers, by name -------------------------------------------------------------------------------------------------------
// s[0:1] and s2 are what the hardware was told to start with, by the descriptor at the end: the address of the arguments, and the
// number of the block.  v0 is the number of the lane.
	.set	ROW, 2
	.set	COLS, 3
// s[4:5] x, s[6:7] out, at this row;  s[8:9] where the row begins;  s10..s13 constants
// v1 largest, later the sum;  v2 column;  v3 its offset in bytes;  v4 x[c], then what is made of it;  v5..v7 scratch;  v8 the largest

// Lanes whose column is past the end of the row go to sleep, and leave when all are asleep.
	.macro	EACH_COLUMN done
	v_cmp_gt_u32	vcc_lo, s[COLS], v2
	s_and_b32	exec_lo, exec_lo, vcc_lo
	s_cbranch_execz	\done
	v_lshlrev_b32	v3, 2, v2
	global_load_b32	v4, v3, s[4:5]
	v_add_nc_u32	v2, 32, v2
	s_waitcnt	vmcnt(0)                // a load is there when its counter says so, not before
	.endm

	.macro	FIRST_COLUMN
	s_mov_b32	exec_lo, -1             // all lanes awake
	v_mov_b32	v2, v0
	.endm

// All 32 lanes get what `op` makes of every lane's v1.  Lane numbers differ in one bit at each step: row_xmask reaches 1, 2, 4 and 8
// inside a row of 16 lanes, permlanex16 the other row, where each lane picks the one of its own number (s12, s13 list them).
	.macro	ACROSS_LANES op
	\op\()_dpp	v1, v1, v1 row_xmask:1 row_mask:0xf bank_mask:0xf
	\op\()_dpp	v1, v1, v1 row_xmask:2 row_mask:0xf bank_mask:0xf
	\op\()_dpp	v1, v1, v1 row_xmask:4 row_mask:0xf bank_mask:0xf
	\op\()_dpp	v1, v1, v1 row_xmask:8 row_mask:0xf bank_mask:0xf
	v_permlanex16_b32	v5, v1, s12, s13
	\op	v1, v1, v5
	.endm

// v4 = exp(v4 - v8).  The hardware has 2^f: exp(d) = 2^(d * log2 e), whose whole part goes into the exponent, and whose rest must be
// right to the last bit: what the product with log2 e lost is found by fma, and added.  Below -104 the result is 0: without the last
// two lines -inf would give -inf - -inf, no number.  A NaN passes: it is not below anything.
	.macro	EXP
	v_sub_f32	v4, v4, v8
	v_mul_f32	v5, s10, v4
	v_fma_f32	v6, v4, s10, -v5
	v_fmac_f32	v6, s11, v4             // log2 e has more bits than s10
	v_rndne_f32	v7, v5
	v_sub_f32	v5, v5, v7
	v_add_f32	v5, v5, v6
	v_exp_f32	v5, v5
	v_cvt_i32_f32	v7, v7
	s_waitcnt_depctr	0xfff           // gfx11 does not wait by itself for what v_exp and v_rcp give
	v_ldexp_f32	v5, v5, v7
	v_cmp_gt_f32	vcc_lo, 0xc2d00000, v4  // -104 > v4
	v_cndmask_b32	v4, v5, 0, vcc_lo
	.endm

softmax_rows:
	s_load_b128	s[4:7], s[0:1], 0x0     // x, out
	s_load_b32	s[COLS], s[0:1], 0x10   // cols
	s_mov_b32	s10, 0x3fb8aa3b         // log2 e
	s_mov_b32	s11, 0x32a57060         // and what is left of it
	s_mov_b32	s12, 0x76543210
	s_mov_b32	s13, 0xfedcba98
	s_waitcnt	lgkmcnt(0)
	s_mul_i32	s8, s[ROW], s[COLS]     // an array may have more than 2^32 elements
	s_mul_hi_u32	s9, s[ROW], s[COLS]
	s_lshl_b64	s[8:9], s[8:9], 2
	s_add_u32	s4, s4, s8
	s_addc_u32	s5, s5, s9
	s_add_u32	s6, s6, s8
	s_addc_u32	s7, s7, s9

	v_mov_b32	v1, 0xff800000          // -inf
	FIRST_COLUMN
.Llargest:
	EACH_COLUMN .Llargest_done
	v_max_f32	v1, v1, v4
	s_branch	.Llargest
.Llargest_done:
	s_mov_b32	exec_lo, -1
	ACROSS_LANES v_max_f32
	v_mov_b32	v8, v1

	v_mov_b32	v1, 0
	FIRST_COLUMN
.Lsum:
	EACH_COLUMN .Lsum_done
	EXP
	v_add_f32	v1, v1, v4
	s_branch	.Lsum
.Lsum_done:
	s_mov_b32	exec_lo, -1
	ACROSS_LANES v_add_f32
	v_rcp_f32	v9, v1                  // 1 / sum, and a step of Newton's to its last bit
	s_waitcnt_depctr	0xfff
	v_fma_f32	v5, -v1, v9, 1.0
	v_fmac_f32	v9, v5, v9

	FIRST_COLUMN
.Lwrite:
	EACH_COLUMN .Lwrite_done
	EXP
	v_mul_f32	v4, v4, v9
	global_store_b32	v3, v4, s[6:7]
	s_branch	.Lwrite
.Lwrite_done:
	s_endpgm
	.size	softmax_rows, .-softmax_rows

// ---- for the hardware: how the kernel is started -------------------------------------------------------------------------------
	.section	.rodata,"a",@progbits
	.p2align 6
	.amdhsa_kernel softmax_rows
		.amdhsa_user_sgpr_kernarg_segment_ptr 1         // in s[0:1]
		.amdhsa_user_sgpr_count 2                       // so that the block's number is in s2
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_vgpr_workitem_id 0               // v0 is x alone
		.amdhsa_kernarg_size 20
		.amdhsa_wavefront_size32 1
		.amdhsa_float_denorm_mode_32 3                  // small numbers are kept, as everywhere in rlxpy
		.amdhsa_next_free_vgpr 10
		.amdhsa_next_free_sgpr 14
	.end_amdhsa_kernel

// ---- for the driver, and for rlxpy, which holds the kernel's declaration to it ---------------------------------------------------
	.amdgpu_metadata
---
amdhsa.version: [ 1, 2 ]
amdhsa.kernels:
  - .name: softmax_rows
    .symbol: softmax_rows.kd
    .kernarg_segment_size: 20
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 32
    .sgpr_count: 14
    .vgpr_count: 10
    .max_flat_workgroup_size: 32
    .args:
      - { .name: x, .size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global }
      - { .name: out, .size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global }
      - { .name: x_last, .size: 4, .offset: 16, .value_kind: by_value }
...
	.end_amdgpu_metadata
