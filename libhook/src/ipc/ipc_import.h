/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* False: not the library's handle or memory; call the driver. */
bool ipc_import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result);
bool ipc_import_close(CUdeviceptr address, CUresult *result);

void ipc_import_context_ends(CUcontext context);   /* memory_lock is held */

struct ipc_part;
struct ipc_ticket;

/* Connects to the owner and sends the request. Returns the connection, a handle of own_file.h, or
 * -1. *again: the owner closed the connection before it answered; a retry may succeed. */
int ipc_client_begin(const struct ipc_ticket *ticket, bool *again);
/* Receives and validates the next part. Returns its descriptor as a handle of own_file.h, or -1. */
int ipc_client_part(int from, const struct ipc_ticket *ticket, struct ipc_part *part, bool *again);
