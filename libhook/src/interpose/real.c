/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the driver's own functions are, and the list of our wrappers.
 *
 * All are looked up together when the first is needed. Several threads may do
 * it at once: they store the same values, so nothing is locked, and a fork at
 * any moment leaves nothing half done.
 */
#define _GNU_SOURCE                  /* RTLD_NEXT, dlinfo() */
#include "interpose/real.h"

#include <dlfcn.h>
#include <string.h>

#include "interpose/symbols.h"

_Atomic(void *) real_functions[REAL_COUNT];
static _Atomic bool found;                         /* all of them are stored */

#define DRIVER "libcuda.so.1"

static const char *const names[REAL_COUNT] = {
#define HOOK(name, parameters) [REAL_##name] = #name,
#define USE HOOK
#include "interpose/hooks.def"
#include "interpose/uses.def"
#undef HOOK
#undef USE
};

static void *const wrappers[HOOK_COUNT] = {
#define HOOK(name, parameters) [REAL_##name] = (void *)name,
#include "interpose/hooks.def"
#undef HOOK
};

CUresult real_absent(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

/* The handle is kept, so that the driver stays where we found it. */
static bool find_all(void *handle)
{
    struct link_map *driver;
    if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &driver) != 0)
        return false;
    for (int i = 0; i < REAL_COUNT; i++) {
        void *function = symbols_function(driver, names[i]);
        atomic_store_explicit(&real_functions[i], function != NULL ? function
                                                                   : (void *)real_absent,
                              memory_order_relaxed);
    }
    atomic_store_explicit(&found, true, memory_order_release);
    return true;
}

bool real_driver_present(void)
{
    return atomic_load_explicit(&found, memory_order_acquire)
           || find_all(dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD));
}

void *real_find(enum real_index index)
{
    if (!real_driver_present() && !find_all(dlopen(DRIVER, RTLD_LAZY))) {
        dlerror();                   /* the program asked for no library, so it hears of none */
        return (void *)real_absent;
    }
    return atomic_load_explicit(&real_functions[index], memory_order_relaxed);
}

void *hook_wrapper(enum real_index index)
{
    return wrappers[index];
}

const char *hook_name(enum real_index index)
{
    return names[index];
}

enum real_index hook_named(const char *name)
{
    /* The driver's names go on with a capital letter, cudaMalloc and cublasCreate do not. */
    if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
        return HOOK_COUNT;
    int index = 0;
    while (index < HOOK_COUNT && strcmp(names[index], name) != 0)
        index++;
    return (enum real_index)index;
}

enum real_index hook_of_real(const void *entry)
{
    int index = 0;
    while (index < HOOK_COUNT
           && (entry == (void *)real_absent
               || atomic_load_explicit(&real_functions[index], memory_order_relaxed) != entry))
        index++;
    return (enum real_index)index;
}
