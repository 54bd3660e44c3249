/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress: by name, version and default stream; entries.def has the versions of CUDA. */
#define _GNU_SOURCE                  /* dladdr1() */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/entry.h"

/* Only the address is used here; the prototype is with the function's definition. */
#define ENTRY(symbol, name, version, per_thread)                                         \
    extern __attribute__((visibility("default"))) char at_##symbol __asm__(#symbol);
#define HIDDEN(symbol, name, version, per_thread) extern char at_##symbol __asm__(#symbol);
#define UNSUPPORTED(symbol, name, version, per_thread)                                   \
    __attribute__((visibility("default"))) CUresult at_##symbol(void) __asm__(#symbol);  \
    CUresult at_##symbol(void)                                                           \
    {                                                                                    \
        ENTER_AS(#symbol, ENTRY_INIT);                                                   \
        return CUDA_ERROR_NOT_SUPPORTED;                                                 \
    }
#include "table/entries.def"
#undef ENTRY
#undef UNSUPPORTED
#undef HIDDEN

struct entry_point {
    const char *name;                /* as passed to cuGetProcAddress */
    void *function;
    int version;                     /* version of CUDA in which the symbol appeared */
    int per_thread;                  /* the NULL stream means the thread's own stream */
};

static const struct entry_point entry_points[] = {
#define ENTRY(symbol, name, version, per_thread) {#name, &at_##symbol, version, per_thread},
#define HIDDEN(symbol, name, version, per_thread) {#name, &at_##symbol, version, per_thread},
#define UNSUPPORTED(symbol, name, version, per_thread)                                   \
    {#name, (void *)at_##symbol, version, per_thread},
#include "table/entries.def"
};

#define ENTRY_POINTS (sizeof entry_points / sizeof *entry_points)

static bool is_there(const struct entry_point *one)
{
    return one->version <= driver_cuda_version();
}

/* Removes newer functions of an older driver from the symbol table, so that neither dlsym() nor
 * a program that reads the table, as the library does, finds them. */
__attribute__((constructor)) static void hide_younger(void)
{
    long page = sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < ENTRY_POINTS; i++) {
        Dl_info found;
        ElfW(Sym) *symbol;
        if (is_there(&entry_points[i])
            || dladdr1(entry_points[i].function, &found, (void **)&symbol, RTLD_DL_SYMENT) == 0)
            continue;
        void *from = (void *)((uintptr_t)symbol & -(uintptr_t)page);
        size_t size = (uintptr_t)(symbol + 1) - (uintptr_t)from;
        if (mprotect(from, size, PROT_READ | PROT_WRITE) != 0)
            abort();
        symbol->st_shndx = SHN_UNDEF;
        symbol->st_value = 0;
        mprotect(from, size, PROT_READ);
    }
}

static int by_name(const void *key, const void *element)
{
    return strcmp(key, ((const struct entry_point *)element)->name);
}

static CUresult find(const char *name, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    FAIL_IF(name == NULL || function == NULL || (flags & ~(cuuint64_t)3) != 0
            || version > driver_cuda_version(), CUDA_ERROR_INVALID_VALUE);
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct entry_point *best = NULL, *end = entry_points + ENTRY_POINTS;
    const struct entry_point *first = bsearch(name, entry_points, ENTRY_POINTS,
                                              sizeof *entry_points, by_name);
    while (first != NULL && first > entry_points && strcmp(first[-1].name, name) == 0)
        first--;
    bool both_forms = false;
    for (const struct entry_point *one = first;
         one != NULL && one < end && strcmp(one->name, name) == 0; one++)
        both_forms = both_forms || (one->per_thread && is_there(one));
    for (const struct entry_point *one = first;
         one != NULL && one < end && strcmp(one->name, name) == 0; one++) {
        if (!is_there(one))
            continue;
        found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        bool right_form = one->per_thread == (per_thread && both_forms);
        if (right_form && one->version <= version
            && (best == NULL || one->version > best->version))
            best = one;
    }
    if (best != NULL)
        found = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = best != NULL ? best->function : NULL;
    GIVE_IF(status, found);
    return CUDA_SUCCESS;             /* also if no function was found */
}

API(cuGetProcAddress, const char *name, void **function, int version, cuuint64_t flags)
{
    return find(name, function, version, flags, NULL);
}

API(cuGetProcAddress_v2, const char *name, void **function, int version, cuuint64_t flags,
    CUdriverProcAddressQueryResult *status)
{
    return find(name, function, version, flags, status);
}
