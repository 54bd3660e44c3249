/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE                  /* dl_iterate_phdr() */
#include "driver/others.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include "driver/forked.h"
#include "driver/symbols.h"

static const char *const names[OTHER_COUNT] = {
#define OTHER(name) [OTHER_##name] = #name,
#include "driver/others.def"
#undef OTHER
};

static KEPT_IN_CHILD _Atomic(void *) functions[OTHER_COUNT] = { NULL };

EARLY enum other other_named(const char *name)
{
    int other = 0;
    while (other < OTHER_COUNT && !symbols_same(names[other], name))
        other++;
    return (enum other)other;
}

const char *other_name(enum other other)
{
    return names[other];
}

void other_found(enum other other, void *function)
{
    atomic_store(&functions[other], function);
}

struct search {
    const char *name, *library;
};

static int find(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    struct link_map tables;
    (void)size;
    if (symbols_object(object, &tables) && symbols_function(&tables, search->name) != NULL)
        search->library = object->dlpi_name;
    return search->library != NULL;
}

/* A program that has not used dlsym() is linked against the library. The dlsym() below, which is
 * this library's, finds the default one of several versions and calls other_found(). */
other_function *other_real(enum other other)
{
    if (atomic_load(&functions[other]) == NULL) {
        struct search search = { .name = names[other] };
        dl_iterate_phdr(find, &search);
        void *library = search.library == NULL ? NULL
                                               : dlopen(search.library, RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            dlsym(library, names[other]);
    }
    return (other_function *)atomic_load(&functions[other]);
}
