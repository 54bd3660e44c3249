/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the entry point that cuGetProcAddress returns by its wrapper or stub. The entry point
 * tells which version and default stream of a name the program will call. The name decides only for
 * entry points of a newer driver (driver/newer.c). If by its name such a function submits no work,
 * but other versions of it are hooked, it handles memory in an unknown way, so the process may
 * attach no client. */
#include <string.h>

#include "api/wrapper.h"
#include "driver/stubs.h"
#include "service/attach.h"

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
    if (*entry == NULL)
        return;
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

NOTED(cuGetProcAddress, translate(p1, p2), (const char *, void **, int, cuuint64_t))
NOTED(cuGetProcAddress_v2, translate(p1, p2),
    (const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *))
