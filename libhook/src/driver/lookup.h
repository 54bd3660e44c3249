/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dlsym.S needs to know: whether a call of dlsym() concerns us.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* Returned in two registers; dlsym.S reads them. */
struct lookup_answer {
    void *pointer;
    uintptr_t is_final;              /* 0: ask the real function, as if we were not there */
};

struct lookup_answer lookup_symbol(void *handle, const char *name, const void *caller);
struct lookup_answer lookup_version(void *handle, const char *name, const char *version,
                                    const void *caller);

extern _Atomic(void *) lookup_real_dlsym;          /* set before lookup_symbol() returns, */
extern _Atomic(void *) lookup_real_dlvsym;         /* NULL if there is none */
