/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the driver's own functions, all when the first is needed, and lists the wrappers. Several
 * threads may search at once: they find the same addresses, and no lock can stay locked after a
 * fork. Only the first address found is stored: later addresses may be of wrappers (rebind.c). */
#define _GNU_SOURCE                  /* RTLD_NEXT, dlinfo() */
#include "driver/real.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "api/newer_calls.h"
#include "driver/forked.h"
#include "driver/symbols.h"

KEPT_IN_CHILD _Atomic(void *) real_functions[REAL_COUNT] = { NULL };
static KEPT_IN_CHILD _Atomic bool found = false;       /* all real_functions are stored */

#define DRIVER "libcuda.so.1"

static const char *const names[REAL_COUNT] = {
#define HOOK(name, parameters) [REAL_##name] = #name,
#define USE HOOK
#include "driver/hooks.def"
#include "driver/uses.def"
#undef HOOK
#undef USE
};

/* The functions of api/entries.c. */
#define HOOK(name, parameters)                                                             \
    extern const char entry_##name[] __attribute__((visibility("hidden")));                \
    extern const char export_##name[] __asm__(#name) __attribute__((visibility("protected")));
#define OTHER(name)                                                                        \
    extern const char export_##name[] __asm__(#name) __attribute__((visibility("protected")));
#include "driver/hooks.def"
#include "driver/others.def"
#undef HOOK
#undef OTHER

static const void *const wrappers[HOOK_COUNT] = {
#define HOOK(name, parameters) [REAL_##name] = entry_##name,
#include "driver/hooks.def"
#undef HOOK
};

static KEPT_IN_CHILD _Atomic(const char *) newer_names[NEWER_MAX] = { NULL };
static KEPT_IN_CHILD _Atomic(const struct link_map *) driver = NULL;

CUresult real_absent(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static bool find_all(void *handle)       /* `handle` is never closed: the driver stays loaded */
{
    struct link_map *object;
    if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0)
        return false;
    for (int i = 0; i < REAL_COUNT; i++) {
        if (names[i] == NULL)
            continue;
        void *function = symbols_function(object, names[i]), *none = NULL;
        atomic_compare_exchange_strong(&real_functions[i], &none,
                                       function != NULL ? function : (void *)real_absent);
    }
    atomic_store_explicit(&driver, object, memory_order_relaxed);
    atomic_store_explicit(&found, true, memory_order_release);
    return true;
}

bool real_driver_present(void)
{
    return atomic_load_explicit(&found, memory_order_acquire)
           || find_all(dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD));
}

const struct link_map *real_driver(void)
{
    return atomic_load_explicit(&driver, memory_order_relaxed);
}

void *real_find(enum real_index index)
{
    if (!real_driver_present() && !find_all(dlopen(DRIVER, RTLD_LAZY))) {
        dlerror();                   /* the program must not see this dlopen()'s error */
        return (void *)real_absent;
    }
    return atomic_load_explicit(&real_functions[index], memory_order_relaxed);
}

/* Both functions of a hook have the same distance. */
void *hook_exported(enum real_index index)
{
    return index < HOOKS_LISTED
        ? (void *)((const char *)wrappers[index] - (entry_cuInit - export_cuInit)) : NULL;
}

void *hook_wrapper(enum real_index index)
{
    return index < HOOKS_LISTED ? (void *)wrappers[index] : newer_calls[index - HOOKS_LISTED];
}

const char *hook_name(enum real_index index)
{
    return index < HOOKS_LISTED ? names[index] : atomic_load(&newer_names[index - HOOKS_LISTED]);
}

enum real_index hook_of_real(const void *entry)
{
    int index = 0;
    while (index < HOOK_COUNT
           && (entry == NULL || entry == (void *)real_absent
               || atomic_load_explicit(&real_functions[index], memory_order_acquire) != entry))
        index++;
    return (enum real_index)index;
}

static bool takes_stream(const char *name)
{
    static const char *const variants[] = { "_ptsz", "_ptds" };
    char variant[128];
    for (size_t i = 0; i < 2; i++) {
        size_t length = strlen(name);
        bool is_one = length > 5 && strcmp(name + length - 5, variants[i]) == 0;
        snprintf(variant, sizeof variant, "%s%s", name, variants[i]);
        if (is_one || symbols_function(real_driver(), variant) != NULL)
            return true;
    }
    return false;
}

/* Two threads may use two entries for the same function at once, which does no harm. */
static enum real_index claim_entry(const char *name, void *entry)
{
    const char *kept = strdup(name);
    for (int i = 0; i < NEWER_MAX && kept != NULL; i++) {
        const char *none = NULL;
        if (!atomic_compare_exchange_strong(&newer_names[i], &none, kept))
            continue;
        atomic_store_explicit(&real_functions[HOOKS_LISTED + i], entry, memory_order_release);
        return (enum real_index)(HOOKS_LISTED + i);
    }
    return HOOK_COUNT;
}

enum real_index hook_for(const char *name, void *entry)
{
    enum real_index hook = hook_of_real(entry);
    return hook != HOOK_COUNT || newer_kind(name, takes_stream(name)) == NEWER_OTHER
               ? hook : claim_entry(name, entry);
}

enum real_index hook_named(const char *name)
{
    if (!is_entry_point(name))
        return HOOK_COUNT;
    for (int index = 0; index < HOOK_COUNT; index++) {
        const char *hooked = hook_name((enum real_index)index);
        if (hooked != NULL && strcmp(hooked, name) == 0)
            return (enum real_index)index;
    }
    void *entry = real_driver_present() ? symbols_function(real_driver(), name) : NULL;
    return entry == NULL ? HOOK_COUNT : hook_for(name, entry);
}

static const struct { const char *name; const void *wrapper; } others[OTHER_COUNT] = {
#define OTHER(name) { #name, export_##name },
#include "driver/others.def"
#undef OTHER
};
static KEPT_IN_CHILD _Atomic(void *) others_found[OTHER_COUNT] = { NULL };

EARLY enum other other_named(const char *name)
{
    int other = 0;
    while (other < OTHER_COUNT && !symbols_same(others[other].name, name))
        other++;
    return (enum other)other;
}

void *other_wrapper(enum other other)
{
    return (void *)others[other].wrapper;
}

void other_found(enum other other, void *function)
{
    atomic_store(&others_found[other], function);
}

struct search {
    const char *name, *library;
};

static int find_library(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    struct link_map tables;
    (void)size;
    if (symbols_object(object, &tables) && symbols_function(&tables, search->name) != NULL)
        search->library = object->dlpi_name;
    return search->library != NULL;
}

/* A program that has not found the function by dlsym() is linked against it. The dlsym() below is
 * libnvshare's: it finds the default one of several versions and calls other_found(). */
other_function *other_real(enum other other)
{
    if (atomic_load(&others_found[other]) == NULL) {
        struct search search = { .name = others[other].name };
        dl_iterate_phdr(find_library, &search);
        void *library = search.library == NULL ? NULL
                                               : dlopen(search.library, RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            dlsym(library, others[other].name);
    }
    return (other_function *)atomic_load(&others_found[other]);
}
