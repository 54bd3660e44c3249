/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym() and dlvsym().
 *
 * With RTLD_NEXT and RTLD_DEFAULT the C library's function derives its result
 * from its return address, which identifies the calling object. A call that
 * this library does not answer is therefore passed on by a jump, with its
 * arguments, stack and return address unchanged. This is assembly because no
 * compiler guarantees such a jump.
 *
 * lookup_symbol(handle, name, caller) and lookup_version(handle, name,
 * version, caller) in lookup.c decide whether this library answers: if their
 * second result register is not zero, the first one holds the answer.
 */

#if defined(__x86_64__)

.macro ENTRY name, decide, real, caller
        .globl  \name
        .protected \name                /* the library calls this definition */
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), \caller
        call    \decide
        movq    %rdx, %r11
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %r11, %r11
        jnz     1f
        movq    \real(%rip), %rax
        testq   %rax, %rax
        jz      1f
        jmp     *%rax
1:      ret
        .cfi_endproc
        .size   \name, . - \name
.endm

        .hidden lookup_symbol, lookup_version, lookup_real_dlsym, lookup_real_dlvsym
        .text
        ENTRY dlsym, lookup_symbol, lookup_real_dlsym, %rdx
        ENTRY dlvsym, lookup_version, lookup_real_dlvsym, %rcx

#elif defined(__aarch64__)

.macro ENTRY name, decide, real, caller
        .globl  \name
        .protected \name                /* the library calls this definition */
        .type   \name, %function
        .p2align 4
\name:
        .cfi_startproc
        hint    #34                     /* bti c */
        stp     x29, x30, [sp, #-48]!
        .cfi_def_cfa_offset 48
        .cfi_offset 29, -48
        .cfi_offset 30, -40
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        str     x2, [sp, #32]
        mov     \caller, x30
        bl      \decide
        mov     x16, x0
        mov     x17, x1
        ldp     x0, x1, [sp, #16]
        ldr     x2, [sp, #32]
        ldp     x29, x30, [sp], #48
        .cfi_restore 29
        .cfi_restore 30
        .cfi_def_cfa_offset 0
        cbnz    x17, 1f
        adrp    x16, \real
        ldr     x16, [x16, #:lo12:\real]
        cbz     x16, 1f
        br      x16
1:      mov     x0, x16
        ret
        .cfi_endproc
        .size   \name, . - \name
.endm

        .hidden lookup_symbol, lookup_version, lookup_real_dlsym, lookup_real_dlvsym
        .text
        ENTRY dlsym, lookup_symbol, lookup_real_dlsym, x2
        ENTRY dlvsym, lookup_version, lookup_real_dlvsym, x3

#else
#error "libnvshare is written for x86-64 and aarch64; add dlsym for this machine"
#endif

        .section .note.GNU-stack, "", %progbits
