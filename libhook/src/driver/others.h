/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapped functions of libraries other than the driver (others.def), which programs find by dlsym()
 * or by linking. */
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

/* The function of this name, or OTHER_COUNT. May run as early as dlsym(). */
enum other other_named(const char *name);
const char *other_name(enum other other);
/* Records the function that the program has looked up by dlsym(). */
void other_found(enum other other, void *function);
/* The other library's function; NULL: no loaded library has it. */
other_function *other_real(enum other other);
