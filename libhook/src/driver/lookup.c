/* SPDX-License-Identifier: Apache-2.0 */
/* dlsym() as programs see it, behind the entry in dlsym.S. If the C library's dlsym() returns a
 * function of the driver or of others.def, the program gets the wrapper or stub (stubs.h).
 * RTLD_NEXT depends on the caller's object: if it was loaded before this library, the C library
 * finds our exported function or that of a library in between; if later, the caller gets that of
 * a library which precedes the driver, or our wrapper. RTLD_DEFAULT finds our wrappers even without a driver: the
 * caller then gets NULL, which RTLD_NEXT finds here. A preloaded library that defines dlsym()
 * asks dlvsym() for the C library's dlsym(), and gets ours, so that its calls find our wrappers. */
#define _GNU_SOURCE                  /* RTLD_NEXT, dlinfo() */
#include "driver/lookup.h"

#include <dlfcn.h>

#include "driver/forked.h"
#include "driver/real.h"
#include "driver/stubs.h"
#include "driver/symbols.h"

KEPT_IN_CHILD _Atomic(void *) lookup_real_dlsym = NULL;
KEPT_IN_CHILD _Atomic(void *) lookup_real_dlvsym = NULL;

void *dlsym(void *restrict handle, const char *restrict name);
void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

/* The dynamic linker's list of objects, in glibc and in musl. */
extern struct r_debug _r_debug __attribute__((weak));
extern struct r_debug *_dl_debug_addr __attribute__((weak));

typedef void *symbol_function(void *, const char *);
typedef void *version_function(void *, const char *, const char *);

static const struct lookup_answer not_ours;

/* The next definition after this library's, as RTLD_NEXT would find, or else the first definition.
 * Sanitizers intercept every function that locks the linker's list, so the list is read without the
 * lock: this runs at the process's first dlsym(), long before threads unload libraries. */
EARLY static void *find_real(const char *name)
{
    bool behind = false;
    void *first = NULL;
    const struct r_debug *debug = &_r_debug != NULL ? &_r_debug
                                : &_dl_debug_addr != NULL ? _dl_debug_addr : NULL;
    const struct link_map *object = debug == NULL ? NULL : debug->r_map;
    for (; object != NULL; object = object->l_next) {
        if (object->l_ld == _DYNAMIC) {
            behind = true;
            continue;
        }
        void *function = symbols_function(object, name);
        if (function != NULL && behind)
            return function;
        if (first == NULL)
            first = function;
    }
    return first;
}

void *lookup_next(const char *name)
{
    return find_real(name);
}

EARLY static void find_both(void)
{
    if (__builtin_expect(atomic_load_explicit(&lookup_real_dlsym, memory_order_relaxed) != NULL, 1))
        return;
    atomic_store_explicit(&lookup_real_dlvsym, find_real("dlvsym"), memory_order_relaxed);
    atomic_store_explicit(&lookup_real_dlsym, find_real("dlsym"), memory_order_release);
}

/* Which of two addresses, the caller's or the library's, lies in the object loaded first. */
struct order {
    uintptr_t caller;
    uintptr_t ours;
    int answer; /* 1: the caller's, or the caller is this library; -1: the library's */
};

static int compare_order(struct dl_phdr_info *object, size_t size, void *data)
{
    struct order *order = data;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        if (order->caller - start < segment->p_memsz)
            return order->answer = 1;
        if (order->ours - start < segment->p_memsz)
            order->answer = -1;
    }
    return order->answer;
}

static bool stands_behind_us(const void *caller)
{
    struct order order = { (uintptr_t)caller, (uintptr_t)_DYNAMIC, 0 };
    dl_iterate_phdr(compare_order, &order);
    return order.answer < 0;
}

static struct lookup_answer answer(void *pointer)
{
    return (struct lookup_answer){ pointer, 1 };
}

/* Returns what the C library's dlsym() finds; with a version, its dlvsym(). */
EARLY static void *find(void *handle, const char *name, const char *version)
{
    if (version != NULL)
        return ((version_function *)atomic_load_explicit(&lookup_real_dlvsym, memory_order_relaxed))
            (handle, name, version);
    return ((symbol_function *)atomic_load_explicit(&lookup_real_dlsym, memory_order_relaxed))
        (handle, name);
}

static struct lookup_answer lookup_hook(enum real_index hook, void *handle, const char *version,
                                        const void *caller)
{
    const char *name = hook_name(hook);
    void *wrapper = hook_wrapper(hook);
    const void *exported = hook_exported(hook);
    /* Before find(), so that dlerror() reports only an error of the caller's own lookup. */
    void *entry = real_driver_present() ? atomic_load(&real_functions[hook]) : NULL;
    bool exists = entry != NULL && entry != (void *)real_absent;

    if (handle == RTLD_NEXT) {
        if (!exists || !stands_behind_us(caller))
            return not_ours;
        void *next = symbols_after(caller, name, real_driver()->l_addr);
        return answer(next != NULL ? next : wrapper);
    }
    void *there = find(handle, name, version);
    if (there == exported && !exists)
        return answer(find(RTLD_NEXT, name, version));
    return answer(exists && there == entry ? wrapper : there);
}

static struct lookup_answer lookup_other(enum other other, void *handle, const char *name,
                                         const char *version)
{
    void *there = find(handle, name, version);
    if (there == other_wrapper(other))
        return other_real(other) == NULL ? answer(find(RTLD_NEXT, name, version)) : not_ours;
    if (there == NULL)
        return not_ours;
    other_found(other, there);
    return answer(other_wrapper(other));
}

/* `version`: NULL for dlsym(). */
EARLY static struct lookup_answer lookup(void *handle, const char *name, const char *version,
                                         const void *caller)
{
    enum other other = other_named(name);
    if (other != OTHER_COUNT && handle != RTLD_NEXT)
        return lookup_other(other, handle, name, version);
    void *ours = version == NULL ? NULL
               : symbols_same(name, "dlsym") ? (void *)dlsym
               : symbols_same(name, "dlvsym") ? (void *)dlvsym : NULL;
    if (ours != NULL)
        return stands_behind_us(caller) || find(handle, name, version) == NULL ? not_ours
                                                                               : answer(ours);
    if (name[0] != 'c' || name[1] != 'u')
        return not_ours;
    enum real_index hook = hook_named(name);
    if (hook != HOOK_COUNT)
        return lookup_hook(hook, handle, version, caller);
    if (handle == RTLD_NEXT || !is_entry_point(name) || !real_driver_present())
        return not_ours;
    void *there = find(handle, name, version);
    /* NULL: dlsym.S jumps to the real dlsym(), which also searches the caller's own libraries. */
    return there == NULL ? not_ours : answer(stub_of(there));
}

EARLY struct lookup_answer lookup_symbol(void *handle, const char *name, const void *caller)
{
    find_both();
    return name == NULL || lookup_real_dlsym == NULL ? not_ours
                                                     : lookup(handle, name, NULL, caller);
}

EARLY struct lookup_answer lookup_version(void *handle, const char *name, const char *version,
                                          const void *caller)
{
    find_both();
    return name == NULL || version == NULL || lookup_real_dlvsym == NULL
               ? not_ours : lookup(handle, name, version, caller);
}

/* AddressSanitizer's runtime ends a program in which it is not the first library, which matters
 * only for libraries that replace malloc(). The runtime calls this function for default options;
 * a definition in the program takes precedence. */
const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
