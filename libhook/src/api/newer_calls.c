/* SPDX-License-Identifier: Apache-2.0 */
/* A call of a newer driver's function with unknown arguments passes the gate and is forwarded with
 * sixteen 64-bit arguments, perhaps more than the function has. Floating-point arguments would be
 * lost; no function that submits work takes one. A drain waits for the submitted work, but its bus
 * load is not seen, and a captured call waits at a closed gate. A function after which the library
 * would have to keep track of work or memory pins all memory of the program at its first call. */
#include "api/newer_calls.h"

#include "api/wrapper.h"
#include "driver/log.h"
#include "gate/client.h"

#define WORDS                                                                              \
    uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,    \
    uint64_t h, uint64_t i, uint64_t j, uint64_t k, uint64_t l, uint64_t m, uint64_t n,    \
    uint64_t o, uint64_t p

typedef CUresult newer_function(WORDS);

/* Called inside the gate. At a function's first call: prints its name; pins for NEWER_KEEPS. */
static void first(enum real_index hook)
{
    static atomic_flag called[NEWER_MAX];
    if (atomic_flag_test_and_set(&called[hook - HOOKS_LISTED]))
        return;
    debug("%s is newer than this libnvshare.so, which takes it for work", hook_name(hook));
    if (newer_kind(hook_name(hook), true) == NEWER_KEEPS)
        clients_pin(NVSHARE_PIN_UNSEEN);
}

static CUresult call(enum real_index hook, WORDS)
{
    gate_enter(GATE_NO_STREAM);
    first(hook);
    CUresult result = ((newer_function *)real_function(hook))(a, b, c, d, e, f, g, h, i, j, k, l,
                                                              m, n, o, p);
    gate_leave();
    return result;
}

/* The wrapper for entry 8 * high + low of newer_calls[]. */
#define DEFINE(high, low)                                                                  \
    static CUresult call_##high##low(WORDS)                                                \
    {                                                                                      \
        return call(HOOKS_LISTED + 8 * 0x##high + low, a, b, c, d, e, f, g, h, i, j, k, l, \
                    m, n, o, p);                                                           \
    }
#define NAME(high, low) (void *)call_##high##low,
#define EIGHT(each, high)                                                                  \
    each(high, 0) each(high, 1) each(high, 2) each(high, 3)                                \
    each(high, 4) each(high, 5) each(high, 6) each(high, 7)
#define ALL(each)                                                                          \
    EIGHT(each, 0) EIGHT(each, 1) EIGHT(each, 2) EIGHT(each, 3) EIGHT(each, 4)             \
    EIGHT(each, 5) EIGHT(each, 6) EIGHT(each, 7) EIGHT(each, 8) EIGHT(each, 9)             \
    EIGHT(each, a) EIGHT(each, b) EIGHT(each, c) EIGHT(each, d) EIGHT(each, e)             \
    EIGHT(each, f)

ALL(DEFINE)

void *const newer_calls[NEWER_MAX] = { ALL(NAME) };
