/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: from a name, a version and a kind of default stream to an
 * entry point. entries.def says which symbol came with which version of CUDA.
 */
#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "entry.h"

static int by_name(const void *key, const void *element)
{
    return strcmp(key, ((const struct entry_point *)element)->name);
}

static CUresult find(const char *name, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (name == NULL || function == NULL || (flags & ~(cuuint64_t)3) != 0 || flags == 3)
        return CUDA_ERROR_INVALID_VALUE;
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct entry_point *best = NULL;
    const struct entry_point *one = bsearch(name, entry_points, entry_point_count,
                                            sizeof *entry_points, by_name);
    while (one != NULL && one > entry_points && strcmp(one[-1].name, name) == 0)
        one--;
    for (; one != NULL && one < entry_points + entry_point_count && strcmp(one->name, name) == 0;
         one++) {
        if (found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (one->version > version || (one->per_thread && !per_thread))
            continue;
        /* The newest; of a call that has both forms, the one asked for. */
        if (best == NULL || one->per_thread > best->per_thread
            || (one->per_thread == best->per_thread && one->version > best->version))
            best = one;
    }
    if (best != NULL)
        found = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = best != NULL ? best->function : NULL;
    if (status != NULL)
        *status = found;
    return best != NULL || status != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
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

API(cuGetProcAddress_v2_ptsz, const char *name, void **function, int version,
    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    if (flags == CU_GET_PROC_ADDRESS_DEFAULT)
        flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    return find(name, function, version, flags, status);
}

/* NVIDIA's private tables, which nobody has documented. */
API(cuGetExportTable, const void **table, const CUuuid *id)
{
    if (table == NULL || id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
