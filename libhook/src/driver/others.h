/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of other libraries than the driver that have wrappers: others.def. They are found as
 * the program finds them, by dlsym(), or linked.
 */
#pragma once

#include <stdint.h>

enum other {
#define OTHER(name) OTHER_##name,
#include "driver/others.def"
#undef OTHER
    OTHER_COUNT
};

typedef uint64_t other_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

#define OTHER(name) other_function name;
#include "driver/others.def"
#undef OTHER

/* The one of this name, or OTHER_COUNT. May run as early as dlsym(). */
enum other other_named(const char *name);
const char *other_name(enum other other);
/* A program has found the library's own function, which is to get its wrapper. */
void other_found(enum other other, void *function);
/* The library's own function; NULL if no library that is loaded has it. */
other_function *other_real(enum other other);
