/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For dlsym.S: decides whether the library answers a call of dlsym() or passes the call on.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* Returned in two registers; dlsym.S reads them. */
struct lookup_answer {
    void *pointer;
    uintptr_t is_final;              /* 0: dlsym.S must jump to the real function */
};

struct lookup_answer lookup_symbol(void *handle, const char *name, const void *caller);
struct lookup_answer lookup_version(void *handle, const char *name, const char *version,
                                    const void *caller);

extern _Atomic(void *) lookup_real_dlsym;          /* set before lookup_symbol() returns, */
extern _Atomic(void *) lookup_real_dlvsym;         /* NULL if there is none */

__attribute__((visibility("default"))) const char *__asan_default_options(void);
