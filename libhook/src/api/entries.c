/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that programs get in place of the driver's. For each hook there are two: NAME is
 * exported, for programs that are linked with the driver; entry_NAME, behind it, is for those that
 * ask dlsym() or cuGetProcAddress for the driver's function, and jumps to the wrapper, which the
 * compiler names wrapper_NAME (driver/real.h).
 *
 * A library that the program is linked with, or that is preloaded after this one, may define a
 * driver function, too, to see the program's calls and to hand them on (MPICH's cuMemFree, tracers).
 * Without this library it precedes the driver. NAME therefore jumps to it, and it finds entry_NAME
 * where it looks for the driver's function (driver/lookup.c). A library that defines dlsym() may
 * find the driver's function in another way, and is passed over. So is one that is opened after the
 * program's first call of an exported function.
 *
 * Other libraries patch the entries of driver functions: they replace the first instructions by a
 * jump, and run copies of those instructions before the rest. UCX does so for cuMemAlloc, cuMemFree
 * and others, to learn which memory is the GPU's. Such a library can copy only some instructions,
 * and the compiler begins a wrapper as it likes. All functions here therefore begin with moves of a
 * constant, which any such library can copy, as many as take the space of a jump: 12 bytes on
 * x86-64, 16 bytes on aarch64. They have no landing pad (endbr64, bti), which UCX cannot copy: a
 * process checks landing pads only if all its objects claim to have them, and the library's
 * assembly does not.
 */
#define _GNU_SOURCE                  /* RTLD_NEXT, dl_iterate_phdr() */
#include <dlfcn.h>
#include <errno.h>

#include "api/entries.h"
#include "driver/symbols.h"

_Atomic(void *) entry_targets[HOOKS_LISTED];

/* The first definitions of hooked functions behind this library. */
struct definitions {
    bool behind;                     /* this library has been passed */
    void *first[HOOKS_LISTED];
};

static int find_definitions(struct dl_phdr_info *object, size_t size, void *data)
{
    struct definitions *found = data;
    struct link_map tables;
    (void)size;
    if (symbols_is_ours(object))
        found->behind = true;
    if (real_driver() != NULL && object->dlpi_addr == real_driver()->l_addr)
        return 1;
    if (!found->behind || !symbols_object(object, &tables)
        || symbols_function(&tables, "dlsym") != NULL)
        return 0;
    for (int i = 0; i < HOOKS_LISTED; i++)
        if (found->first[i] == NULL)
            found->first[i] = symbols_function(&tables, hook_name((enum real_index)i));
    return 0;
}

/* Several threads may resolve at once: they find the same. */
void *entry_resolve(unsigned hook)
{
    int error = errno;
    struct definitions found = { .behind = false };
    real_driver_present();
    dl_iterate_phdr(find_definitions, &found);
    for (int i = 0; i < HOOKS_LISTED; i++) {
        const char *name = hook_name((enum real_index)i);
        void *target = hook_wrapper((enum real_index)i);
        /* A plugin's definition is not found by the program's calls. */
        if (found.first[i] != NULL && dlsym(RTLD_NEXT, name) == found.first[i])
            target = found.first[i];
        atomic_store_explicit(&entry_targets[i], target, memory_order_relaxed);
    }
    errno = error;
    return atomic_load_explicit(&entry_targets[hook], memory_order_relaxed);
}

/* NAME jumps to entry_targets[], or to entry_slow if it is not resolved yet. entry_slow keeps all
 * registers with arguments but floating-point ones, which no function of the driver has. */
#if defined(__x86_64__)
/* Only variadic functions have an argument in %eax. */
#define MOVE "        movl    $hook_number, %eax\n"
#define MOVES MOVE MOVE MOVE
#define JUMP "        jmp     "
#define TO_TARGET                                                \
    "        movq    entry_targets + 8 * hook_number(%rip), %r11\n" \
    "        testq   %r11, %r11\n"                               \
    "        jz      entry_slow\n"                               \
    "        jmp     *%r11\n"
#define SLOW                                                     \
    "entry_slow:\n"                                              \
    "        .cfi_startproc\n"                                   \
    "        pushq   %rbp\n"                                     \
    "        .cfi_def_cfa_offset 16\n"                           \
    "        .cfi_offset %rbp, -16\n"                            \
    "        movq    %rsp, %rbp\n"                               \
    "        .cfi_def_cfa_register %rbp\n"                       \
    "        pushq   %rdi\n"                                     \
    "        pushq   %rsi\n"                                     \
    "        pushq   %rdx\n"                                     \
    "        pushq   %rcx\n"                                     \
    "        pushq   %r8\n"                                      \
    "        pushq   %r9\n"                                      \
    "        andq    $-16, %rsp\n"                               \
    "        movl    %eax, %edi\n"                               \
    "        call    entry_resolve\n"                            \
    "        movq    %rax, %r11\n"                               \
    "        movq    -8(%rbp), %rdi\n"                           \
    "        movq    -16(%rbp), %rsi\n"                          \
    "        movq    -24(%rbp), %rdx\n"                          \
    "        movq    -32(%rbp), %rcx\n"                          \
    "        movq    -40(%rbp), %r8\n"                           \
    "        movq    -48(%rbp), %r9\n"                           \
    "        leave\n"                                            \
    "        .cfi_def_cfa %rsp, 8\n"                             \
    "        jmp     *%r11\n"                                    \
    "        .cfi_endproc\n"
#elif defined(__aarch64__)
#define MOVE "        movz    w16, #hook_number\n"
#define MOVES MOVE MOVE MOVE MOVE
#define JUMP "        b       "
#define TO_TARGET                                                \
    "        adrp    x17, entry_targets + 8 * hook_number\n"     \
    "        ldr     x17, [x17, #:lo12:(entry_targets + 8 * hook_number)]\n" \
    "        cbz     x17, entry_slow\n"                          \
    "        br      x17\n"
#define SLOW                                                     \
    "entry_slow:\n"                                              \
    "        .cfi_startproc\n"                                   \
    "        stp     x29, x30, [sp, #-96]!\n"                    \
    "        .cfi_def_cfa_offset 96\n"                           \
    "        .cfi_offset 29, -96\n"                              \
    "        .cfi_offset 30, -88\n"                              \
    "        mov     x29, sp\n"                                  \
    "        stp     x0, x1, [sp, #16]\n"                        \
    "        stp     x2, x3, [sp, #32]\n"                        \
    "        stp     x4, x5, [sp, #48]\n"                        \
    "        stp     x6, x7, [sp, #64]\n"                        \
    "        str     x8, [sp, #80]\n"                            \
    "        mov     w0, w16\n"                                  \
    "        bl      entry_resolve\n"                            \
    "        mov     x17, x0\n"                                  \
    "        ldp     x0, x1, [sp, #16]\n"                        \
    "        ldp     x2, x3, [sp, #32]\n"                        \
    "        ldp     x4, x5, [sp, #48]\n"                        \
    "        ldp     x6, x7, [sp, #64]\n"                        \
    "        ldr     x8, [sp, #80]\n"                            \
    "        ldp     x29, x30, [sp], #96\n"                      \
    "        .cfi_restore 29\n"                                  \
    "        .cfi_restore 30\n"                                  \
    "        .cfi_def_cfa_offset 0\n"                            \
    "        br      x17\n"                                      \
    "        .cfi_endproc\n"
#else
#error "libnvshare is written for x86-64 and aarch64; add entries for this machine"
#endif

#define BEGIN(name, visibility)                      \
    "        .p2align 4\n"                           \
    "        .globl  " name "\n"                     \
    "        ." visibility " " name "\n"             \
    "        .type   " name ", %function\n"          \
    name ":\n"
#define CODE(...)                                    \
    "        .cfi_startproc\n"                       \
    MOVES __VA_ARGS__                                \
    "        .cfi_endproc\n"
#define END(name) "        .size   " name ", . - " name "\n"

/* One statement: a hook's number is its place in the list, as in entry_targets[]. entry_NAME counts
 * as a part of NAME, so that dladdr() and tools name it so. */
__asm__(
    "        .text\n"
    "        .type   entry_slow, %function\n"
    "        .p2align 4\n"
    SLOW
    "        .size   entry_slow, . - entry_slow\n"
    "        .set    hook_number, 0\n"
#define HOOK(name, parameters)                                           \
    BEGIN(#name, "protected") CODE(TO_TARGET)                            \
    BEGIN("entry_" #name, "hidden") CODE(JUMP "wrapper_" #name "\n")     \
    END("entry_" #name) END(#name)                                       \
    "        .set    hook_number, hook_number + 1\n"
#define OTHER(name)                                                      \
    BEGIN(#name, "protected") CODE(JUMP "wrapper_" #name "\n") END(#name)
#include "driver/hooks.def"
    "        .set    hook_number, 0\n"
#include "driver/others.def"
);
