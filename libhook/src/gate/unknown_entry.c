/* SPDX-License-Identifier: Apache-2.0 */
#include "gate/unknown_entry.h"

#include "driver/log.h"
#include "gate/client.h"

static _Atomic(const char *) unknown;              /* the first such function */

void unknown_entry(const char *name)
{
    const char *none = NULL;
    if (atomic_compare_exchange_strong(&unknown, &none, name) && !client_none())
        complain("this driver has a newer %s than this libnvshare.so knows: the program's work "
                 "may pass it by. Update nvshare.", name);
}

bool unknown_entry_forbids(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *name = atomic_load(&unknown);
    if (name != NULL && client_none() && !atomic_flag_test_and_set(&told))
        complain("this driver has a newer %s than this libnvshare.so knows. The GPU is used "
                 "unshared. Update nvshare.", name);
    return name != NULL && client_none();
}
