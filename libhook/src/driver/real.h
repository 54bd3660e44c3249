/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own functions. REAL(cuMemCreate)(...) returns CUDA_ERROR_NOT_FOUND where
 * HAVE_REAL(cuMemCreate) is false. Both may be used even before constructors have run. */
#pragma once

#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/locks.h"
#include "driver/newer.h"

/* A test compiles these declarations with NVIDIA's cuda.h. The library defines only the hooks, as
 * wrapper_NAME: the function NAME, which the program calls, is in api/entries.c. */
#define HOOK(name, parameters) CUresult name parameters __asm__("wrapper_" #name);
#define USE(name, parameters) CUresult name parameters;
#include "driver/hooks.def"
#include "driver/uses.def"
#undef HOOK
#undef USE

enum real_index {
#define HOOK(name, parameters) REAL_##name,
#define USE HOOK
#include "driver/hooks.def"
    HOOKS_LISTED,
    HOOK_COUNT = HOOKS_LISTED + NEWER_MAX,         /* with entries for newer drivers */
    REAL_BEFORE_USES = HOOK_COUNT - 1,
#include "driver/uses.def"
    REAL_COUNT
#undef HOOK
#undef USE
};

struct link_map;

/* Whether `name` has a driver function's form, unlike cudaMalloc. Runs before any constructor. */
static inline bool is_entry_point(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

extern _Atomic(void *) real_functions[REAL_COUNT];  /* NULL: not looked up yet */

/* Looks up all functions and returns the requested one, never NULL. */
void *real_find(enum real_index index);
CUresult real_absent(void);          /* stands for a function that the driver lacks */

static inline void *real_function(enum real_index index)
{
    void *function = atomic_load_explicit(&real_functions[index], memory_order_relaxed);
    return __builtin_expect(function != NULL, 1) ? function : real_find(index);
}

#define REAL(name) (LOCK_CHECK_CALL(name), (__typeof__(&name))real_function(REAL_##name))
#define HAVE_REAL(name) (real_function(REAL_##name) != (void *)real_absent)

/* Whether the driver is loaded; if so, looks up all functions. */
bool real_driver_present(void);
const struct link_map *real_driver(void);          /* NULL: no driver was found yet */

/* The hook of the driver's function `name`; a free hook if a newer driver adds that function.
 * HOOK_COUNT: the function needs no hook, or no hook is free. */
enum real_index hook_for(const char *name, void *entry);

/* hook_named() and hook_of_real() return HOOK_COUNT if no hook has this name or entry point. */
void *hook_wrapper(enum real_index index);         /* what programs get for the driver's function */
void *hook_exported(enum real_index index);        /* NULL: of a newer driver */
const char *hook_name(enum real_index index);
enum real_index hook_named(const char *name);
enum real_index hook_of_real(const void *entry);

/* Wrapped functions of other libraries (others.def), found by dlsym() or by linking. */
enum other {
#define OTHER(name) OTHER_##name,
#include "driver/others.def"
#undef OTHER
    OTHER_COUNT
};

typedef uint64_t other_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

#define OTHER(name) other_function name __asm__("wrapper_" #name);
#include "driver/others.def"
#undef OTHER

/* The function of this name, or OTHER_COUNT. May run before any constructor. */
enum other other_named(const char *name);
void *other_wrapper(enum other other);
/* Records the function that the program has looked up by dlsym(). */
void other_found(enum other other, void *function);
/* The other library's function; NULL: no loaded library has it. */
other_function *other_real(enum other other);
