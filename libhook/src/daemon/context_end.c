/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes with a context: all memory that was taken in it, and what the service had there.
 */
#include "daemon/context_end.h"

#include "block/pipeline.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "ipc/ipc_import.h"
#include "memory/allocation.h"
#include "memory/deferred_free.h"
#include "memory/managed.h"
#include "memory/pinned.h"
#include "pool/pending_frees.h"

void context_ends(CUcontext context)
{
    if (client_none()) {
        contexts_remove(context);
        return;
    }
    UNCANCELLED;
    bool drained = drain_ending(context);
    LOCKED(service_lock);
    LOCKED(memory_lock);
    deferred_frees_context_end(context);
    ipc_import_context_ends(context);
    managed_context_ends(context);
    pinned_context_ends(context);
    pending_frees_context_ends(context);
    contexts_remove(context);
    capture_leave_context(context);
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = clients[i];
        if (client == NULL)
            continue;
        allocations_context_ends(client, context);
        swap_leave_context(client, context, drained);
        client_update(client);
    }
}
