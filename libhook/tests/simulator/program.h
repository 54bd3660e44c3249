/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real PTX of three of the simulated GPU's kernels, so that the same test runs
 * on a card: what each does is said in simulator/engine/kernels.h.
 */
#pragma once

static const char program_text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nvshare_fill(.param .b64 ptr, .param .b64 count, .param .b64 value)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<12>;\n"
    "  ld.param.u64 %d1, [ptr]; ld.param.u64 %d2, [count]; ld.param.u64 %d3, [value];\n"
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r4, %r1, %r2, %r3; cvt.u64.u32 %d4, %r4;\n"
    "  mov.u32 %r5, %nctaid.x; mul.lo.u32 %r6, %r5, %r2; cvt.u64.u32 %d5, %r6;\n"
    "  mov.u64 %d9, 0x9E3779B97F4A7C15;\n"
    "again:\n"
    "  setp.ge.u64 %p1, %d4, %d2; @%p1 bra done;\n"
    "  mad.lo.u64 %d6, %d4, %d9, %d3;\n"
    "  shl.b64 %d7, %d4, 3; add.u64 %d8, %d1, %d7; st.global.u64 [%d8], %d6;\n"
    "  add.u64 %d4, %d4, %d5; bra again;\n"
    "done:\n"
    "  ret;\n"
    "}\n"
    ".visible .entry nvshare_spin(.param .b64 microseconds)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b64 %d<8>;\n"
    "  ld.param.u64 %d1, [microseconds]; mul.lo.u64 %d1, %d1, 1000;\n"
    "  mov.u64 %d2, %globaltimer; add.u64 %d1, %d1, %d2;\n"
    "again:\n"
    "  mov.u64 %d3, %globaltimer; setp.lt.u64 %p1, %d3, %d1; @%p1 bra again;\n"
    "  ret;\n"
    "}\n"
    ".visible .entry nvshare_wait_flag(.param .b64 ptr, .param .b64 value)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [ptr]; ld.param.u64 %d2, [value]; cvt.u32.u64 %r1, %d2;\n"
    "again:\n"
    "  ld.volatile.global.u32 %r2, [%d1]; setp.ne.u32 %p1, %r2, %r1; @%p1 bra again;\n"
    "  ret;\n"
    "}\n";
