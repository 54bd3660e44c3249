/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stubs of stubs.h. Each stub loads its number into a register that carries no argument (%eax:
 * only of variadic functions), and jumps to its target: the driver's function, or stub_slow. It
 * begins so that other libraries can patch it (api/entries.c). stub_slow saves all registers that may
 * carry arguments, calls stub_wait(), and jumps to the function that stub_wait() returns. This is
 * assembly because no compiler guarantees the registers or the jump.
 */
#include "driver/stubs.h"

        .hidden stub_targets, stub_wait, stub_first, stub_end, stub_slow
        .globl  stub_first, stub_end, stub_slow
        .text

#if defined(__x86_64__)

        .p2align 4
        .type   stub_first, @function
        .cfi_startproc
stub_first:
        .set    number, 0
        .rept   STUBS
        movl    $number, %eax
        movl    $number, %eax
        movl    $number, %eax
        jmp     *stub_targets + 8 * number(%rip)
        .p2align 3
        .set    number, number + 1
        .endr
stub_end:
        .cfi_endproc
        .size   stub_first, . - stub_first

        .type   stub_slow, @function
        .p2align 4
stub_slow:
        .cfi_startproc
        endbr64
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_offset %rbp, -16
        movq    %rsp, %rbp
        .cfi_def_cfa_register %rbp
        pushq   %rdi
        pushq   %rsi
        pushq   %rdx
        pushq   %rcx
        pushq   %r8
        pushq   %r9
        pushq   %r10
        subq    $136, %rsp
        movups  %xmm0, -192(%rbp)
        movups  %xmm1, -176(%rbp)
        movups  %xmm2, -160(%rbp)
        movups  %xmm3, -144(%rbp)
        movups  %xmm4, -128(%rbp)
        movups  %xmm5, -112(%rbp)
        movups  %xmm6, -96(%rbp)
        movups  %xmm7, -80(%rbp)
        andq    $-16, %rsp
        movl    %eax, %edi
        call    stub_wait
        movq    %rax, %r11
        movups  -192(%rbp), %xmm0
        movups  -176(%rbp), %xmm1
        movups  -160(%rbp), %xmm2
        movups  -144(%rbp), %xmm3
        movups  -128(%rbp), %xmm4
        movups  -112(%rbp), %xmm5
        movups  -96(%rbp), %xmm6
        movups  -80(%rbp), %xmm7
        movq    -8(%rbp), %rdi
        movq    -16(%rbp), %rsi
        movq    -24(%rbp), %rdx
        movq    -32(%rbp), %rcx
        movq    -40(%rbp), %r8
        movq    -48(%rbp), %r9
        movq    -56(%rbp), %r10
        leave
        .cfi_def_cfa %rsp, 8
        testq   %r11, %r11
        jz      1f
        jmp     *%r11
1:      movl    $3, %eax                /* CUDA_ERROR_NOT_INITIALIZED */
        ret
        .cfi_endproc
        .size   stub_slow, . - stub_slow

#elif defined(__aarch64__)

        .p2align 5
        .type   stub_first, %function
        .cfi_startproc
stub_first:
        .set    number, 0
        .rept   STUBS
        movz    w16, #number
        movz    w16, #number
        adrp    x17, stub_targets + 8 * number
        ldr     x17, [x17, #:lo12:(stub_targets + 8 * number)]
        br      x17
        .p2align 5
        .set    number, number + 1
        .endr
stub_end:
        .cfi_endproc
        .size   stub_first, . - stub_first

        .type   stub_slow, %function
stub_slow:
        .cfi_startproc
        hint    #34
        stp     x29, x30, [sp, #-224]!
        .cfi_def_cfa_offset 224
        .cfi_offset 29, -224
        .cfi_offset 30, -216
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        str     x8, [sp, #80]
        stp     q0, q1, [sp, #96]
        stp     q2, q3, [sp, #128]
        stp     q4, q5, [sp, #160]
        stp     q6, q7, [sp, #192]
        mov     w0, w16
        bl      stub_wait
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        ldp     x2, x3, [sp, #32]
        ldp     x4, x5, [sp, #48]
        ldp     x6, x7, [sp, #64]
        ldr     x8, [sp, #80]
        ldp     q0, q1, [sp, #96]
        ldp     q2, q3, [sp, #128]
        ldp     q4, q5, [sp, #160]
        ldp     q6, q7, [sp, #192]
        ldp     x29, x30, [sp], #224
        .cfi_restore 29
        .cfi_restore 30
        .cfi_def_cfa_offset 0
        cbz     x16, 1f
        br      x16
1:      mov     w0, #3                  /* CUDA_ERROR_NOT_INITIALIZED */
        ret
        .cfi_endproc
        .size   stub_slow, . - stub_slow

#else
#error "libnvshare is written for x86-64 and aarch64; add stubs for this machine"
#endif

        .section .note.GNU-stack, "", %progbits
