/* SPDX-License-Identifier: Apache-2.0 */
/* For dlsym.S: decides whether the library answers a call of dlsym(). */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct lookup_answer {               /* returned in two registers */
    void *pointer;
    uintptr_t is_final;              /* 0: dlsym.S must jump to the real function */
};

struct lookup_answer lookup_symbol(void *handle, const char *name, const void *caller);
struct lookup_answer lookup_version(void *handle, const char *name, const char *version,
                                    const void *caller);

/* The definition of a function in the next object behind this library; NULL: none. Allowed in a
 * signal handler. */
void *lookup_next(const char *name);

extern _Atomic(void *) lookup_real_dlsym;          /* both are set when lookup_symbol() returns; */
extern _Atomic(void *) lookup_real_dlvsym;         /* NULL: no other object has the function */

__attribute__((visibility("default"))) const char *__asan_default_options(void);
