/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/others.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include "interpose/symbols.h"

static const struct { const char *name, *library; } others[OTHER_COUNT] = {
#define OTHER(name, library) [OTHER_##name] = { #name, library },
#include "interpose/others.def"
#undef OTHER
};

static _Atomic(void *) functions[OTHER_COUNT];

EARLY enum other other_named(const char *name)
{
    int other = 0;
    for (; other < OTHER_COUNT; other++) {
        const char *a = others[other].name, *b = name;
        while (*a != '\0' && *a == *b)
            a++, b++;
        if (*a == *b)
            break;
    }
    return (enum other)other;
}

const char *other_name(enum other other)
{
    return others[other].name;
}

void other_found(enum other other, void *function)
{
    atomic_store(&functions[other], function);
}

/* Of a program that is linked with it. Asked as a program does, so that of several versions it is
 * the present one, dlsym() tells other_found(). */
other_function *other_real(enum other other)
{
    void *function = atomic_load(&functions[other]);
    if (function == NULL) {
        void *library = dlopen(others[other].library, RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            dlsym(library, others[other].name);
        function = atomic_load(&functions[other]);
    }
    return (other_function *)function;
}
