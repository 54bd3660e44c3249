/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls a function through its stub while the stubs are open and while they are closed, with
 * arguments in all argument registers and on the stack. This program takes the place of the driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "driver/forked.h"
#include "driver/real.h"
#include "driver/stubs.h"

#define CHECK(condition) \
    do { if (!(condition)) { printf("line %d: not so: %s\n", __LINE__, #condition); failed = true; } \
    } while (0)
#define NOT_INITIALIZED 3
#define OPERATING_SYSTEM 304

typedef uint64_t function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t, double, double, double, double, double,
                          double, double, double);

_Atomic(void *) real_functions[REAL_COUNT];
static _Atomic unsigned woken, entered;
static bool failed, is_child;

bool is_forked_child(void)
{
    return is_child;
}

bool real_driver_present(void)
{
    return true;
}

const struct link_map *real_driver(void)
{
    struct link_map *map = NULL;
    return dlinfo(dlopen(NULL, RTLD_NOW), RTLD_DI_LINKMAP, &map) == 0 ? map : NULL;
}

/* Changes the argument registers, which compiled code alone might leave unchanged. */
static void on_call(void)
{
#if defined(__x86_64__)
    __asm__ volatile("pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm2, %%xmm2\n"
                     "pxor %%xmm3, %%xmm3\n pxor %%xmm4, %%xmm4\n pxor %%xmm5, %%xmm5\n"
                     "pxor %%xmm6, %%xmm6\n pxor %%xmm7, %%xmm7"
                     ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
#elif defined(__aarch64__)
    __asm__ volatile("movi v0.2d, #0\n movi v1.2d, #0\n movi v2.2d, #0\n movi v3.2d, #0\n"
                     "movi v4.2d, #0\n movi v5.2d, #0\n movi v6.2d, #0\n movi v7.2d, #0"
                     ::: "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
#endif
    woken++;
}

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                    uint64_t g, uint64_t h, uint64_t i, uint64_t j, double k, double l, double m,
                    double n, double o, double p, double q, double r)
{
    const uint64_t whole[] = { a, b, c, d, e, f, g, h, i, j };
    const double parts[] = { k, l, m, n, o, p, q, r };
    uint64_t sum = 0;
    for (unsigned at = 0; at < sizeof whole / sizeof *whole; at++)
        sum = sum * 31 + whole[at];
    for (unsigned at = 0; at < sizeof parts / sizeof *parts; at++)
        sum = sum * 31 + (uint64_t)(parts[at] * 4);
    entered++;
    return sum;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == OPERATING_SYSTEM ? "the error" : NULL;
    return CUDA_SUCCESS;
}

static uint64_t call(function *entry)
{
    return entry(1ull << 63, 2, 3ull << 40, 4, 5, 6ull << 33, 7, 8, 9ull << 50, 10, 0.25, 1.5, 2.75,
                 3.25, 4.5, 5.75, 6.25, 1e9);
}

static void *call_in_thread(void *entry)
{
    static _Thread_local uint64_t result;
    errno = EXDEV;
    result = call((function *)(uintptr_t)entry);
    CHECK(errno == EXDEV);
    return (void *)(uintptr_t)result;
}

/* The result of a call that begins while the stubs are closed, and ends after they are opened. */
static uint64_t call_while_closed(void *entry)
{
    pthread_t thread;
    void *result = NULL;
    unsigned before = entered, told = woken;
    CHECK(stubs_close(on_call));
    CHECK(!stubs_called());
    CHECK(pthread_create(&thread, NULL, call_in_thread,
                         entry != NULL ? entry : atomic_load(&real_functions[0])) == 0);
    while (!stubs_called() || woken == told)
        usleep(1000);
    CHECK(entered == before);
    stubs_open();
    pthread_join(thread, &result);
    CHECK(woken == told + 1);
    return (uintptr_t)result;
}

/* A waiting call and later ones return the error, except those that describe an error. */
static void call_after_loss(void *stub)
{
    pthread_t thread;
    void *result = NULL;
    void *describes = stub_of((void *)cuGetErrorString);
    const char *text = NULL;
    unsigned before = entered, told = woken;
    CHECK(stubs_close(on_call));
    CHECK(pthread_create(&thread, NULL, call_in_thread, stub) == 0);
    while (!stubs_called() || woken == told)
        usleep(1000);
    stubs_lose();
    stubs_await();                   /* returns */
    pthread_join(thread, &result);
    CHECK((unsigned)(uintptr_t)result == OPERATING_SYSTEM);
    CHECK((unsigned)call((function *)(uintptr_t)stub) == OPERATING_SYSTEM);
    CHECK((unsigned)call((function *)(uintptr_t)stub_of((void *)call)) == OPERATING_SYSTEM);
    CHECK(entered == before);
    CHECK(((CUresult (*)(CUresult, const char **))describes)(OPERATING_SYSTEM, &text) == 0);
    CHECK(text != NULL);
}

int main(void)
{
    atomic_store(&real_functions[0], (void *)mix);
    void *stub = stub_of((void *)mix);
    uint64_t expected = call(mix);
    CHECK(stub != (void *)mix && stub_of((void *)mix) == stub);
    CHECK(stub_of((void *)stdout) == (void *)stdout);
    CHECK(call((function *)(uintptr_t)stub) == expected);
    CHECK(call_while_closed(stub) == expected);
    CHECK(call_while_closed(NULL) == expected);        /* as the library calls the driver */
    CHECK(atomic_load(&real_functions[0]) == (void *)mix);
    CHECK(call((function *)(uintptr_t)stub) == expected);
    is_child = true;
    CHECK(call_while_closed(stub) == NOT_INITIALIZED);
    is_child = false;
    call_after_loss(stub);
    stubs_miss();
    CHECK(!stubs_close(on_call));
    puts(failed ? "failed" : "well");
    return failed;
}
