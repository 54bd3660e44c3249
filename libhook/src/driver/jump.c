/* SPDX-License-Identifier: Apache-2.0 */
/* The C library's functions that jump, in whose place a thread first takes back what it has noted
 * in the frames that it leaves (leave.h). For the C library longjmp(), _longjmp() and siglongjmp()
 * are one function; __longjmp_chk() is what programs call that are compiled with _FORTIFY_SOURCE.
 * No header declares them here, as headers rename them. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/leave.h"
#include "driver/lookup.h"

#define EXPORTED __attribute__((visibility("default"), noreturn))

typedef void jump_function(uintptr_t *to, int value);

EXPORTED void nvshare_siglongjmp(uintptr_t *to, int value) __asm__("siglongjmp");
EXPORTED void nvshare_longjmp(uintptr_t *to, int value) __asm__("longjmp");
EXPORTED void nvshare_longjmp_checked(uintptr_t *to, int value) __asm__("__longjmp_chk");
__attribute__((noreturn)) void real_longjmp(uintptr_t *to, int value) __asm__("_longjmp");

/* The stack pointer that a jump restores. glibc hides it with a random number of the process. */
#if defined(__x86_64__)
#define STACK_AT 6

static uintptr_t hidden_with(void)
{
    uintptr_t number;
    __asm__("mov %%fs:0x30, %0" : "=r"(number));
    return number;
}

static uintptr_t shown(uintptr_t stack)
{
    return stack >> 17 | stack << 47;
}
#elif defined(__aarch64__)
#define STACK_AT 13
#define BUFFER_WORDS 64              /* larger than a sigjmp_buf */

int real_setjmp(uintptr_t *to) __asm__("_setjmp") __attribute__((returns_twice));

/* There the number is in no place that a library can name. */
__attribute__((noinline)) static uintptr_t hidden_with(void)
{
    uintptr_t buffer[BUFFER_WORDS], stack;
    if (real_setjmp(buffer) != 0)
        return 0;
    __asm__ volatile("mov %0, sp" : "=r"(stack));
    return buffer[STACK_AT] ^ stack;
}

static uintptr_t shown(uintptr_t stack)
{
    return stack;
}
#endif

static void leave(const uintptr_t *to)
{
    leave_frames_below(shown(to[STACK_AT]) ^ hidden_with());
}

void nvshare_siglongjmp(uintptr_t *to, int value)
{
    leave(to);
    real_longjmp(to, value);
}

void nvshare_longjmp(uintptr_t *to, int value)
{
    leave(to);
    real_longjmp(to, value);
}

void nvshare_longjmp_checked(uintptr_t *to, int value)
{
    static _Atomic(jump_function *) real;
    leave(to);
    if (atomic_load(&real) == NULL)
        atomic_store(&real, (jump_function *)lookup_next("__longjmp_chk"));
    if (atomic_load(&real) != NULL)
        atomic_load(&real)(to, value);
    real_longjmp(to, value);
}
