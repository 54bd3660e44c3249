/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that the library exports under the driver's names. Each jumps to its wrapper, which
 * the compiler names wrapper_NAME (driver/real.h).
 *
 * Other libraries patch the entries of driver functions: they replace the first instructions by a
 * jump, and run copies of those instructions before the rest. UCX does so for cuMemAlloc, cuMemFree
 * and others, to learn which memory is the GPU's. Such a library can copy only some instructions,
 * and the compiler begins a wrapper as it likes. An entry therefore begins with moves of a constant,
 * which any such library can copy, as many as take the space of a jump: 12 bytes on x86-64, 16 bytes
 * on aarch64. It has no landing pad (endbr64, bti), which UCX cannot copy: a process checks landing
 * pads only if all its objects claim to have them, and the library's assembly does not.
 */
#if defined(__x86_64__)
/* Only variadic functions have an argument in %eax. */
#define MOVE "        movl    $0, %eax\n"
#define MOVES MOVE MOVE MOVE
#define JUMP "        jmp     "
#elif defined(__aarch64__)
#define MOVE "        movz    w16, #0\n"
#define MOVES MOVE MOVE MOVE MOVE
#define JUMP "        b       "
#else
#error "libnvshare is written for x86-64 and aarch64; add entries for this machine"
#endif

#define ENTRY(name)                                  \
    __asm__("        .text\n"                        \
            "        .globl  " #name "\n"            \
            "        .protected " #name "\n"         \
            "        .type   " #name ", %function\n" \
            "        .p2align 4\n"                   \
            #name ":\n"                              \
            "        .cfi_startproc\n"               \
            MOVES                                    \
            JUMP "wrapper_" #name "\n"               \
            "        .cfi_endproc\n"                 \
            "        .size   " #name ", . - " #name "\n");

#define HOOK(name, parameters) ENTRY(name)
#define OTHER(name) ENTRY(name)
#include "driver/hooks.def"
#include "driver/others.def"
