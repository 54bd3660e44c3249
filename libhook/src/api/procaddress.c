/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: how everything built since CUDA 11.3 finds the driver's functions.
 *
 * The driver is called with the program's version and flags, and its result translated: a hooked
 * entry point becomes its wrapper. Only the pointer tells which version and default stream of a
 * name the program will call, so the name decides nothing, unless the driver is newer than this
 * library. If the driver returns an unknown entry point, the name tells what it does
 * (driver/newer.c). If it does not submit work, but other versions of the name are hooked, it
 * handles memory in an unknown way, and no client may be attached. All others become stubs.
 */
#include <string.h>

#include "api/wrapper.h"
#include "daemon/attach.h"
#include "driver/stubs.h"

/* The name of a hook that is a version of `symbol`, or NULL. */
static const char *hook_of_base(const char *symbol)
{
    size_t length = strlen(symbol);
    for (int hook = 0; hook < HOOKS_LISTED; hook++) {
        const char *name = hook_name((enum real_index)hook);
        if (strncmp(name, symbol, length) == 0 && newer_base(name) == (int)length)
            return name;
    }
    return NULL;
}

static void translate(const char *symbol, void **entry)
{
    enum real_index hook = hook_for(symbol, *entry);
    if (hook != HOOK_COUNT) {
        *entry = hook_wrapper(hook);
        return;
    }
    const char *known = hook_of_base(symbol);
    if (known != NULL)
        unknown_entry(known);
    *entry = stub_of(*entry);
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **entry, int version, cuuint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress)(symbol, entry, version, flags);
    if (result == CUDA_SUCCESS && *entry != NULL)
        translate(symbol, entry);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **entry, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, entry, version, flags, status);
    if (result == CUDA_SUCCESS && *entry != NULL)
        translate(symbol, entry);
    return result;
}
