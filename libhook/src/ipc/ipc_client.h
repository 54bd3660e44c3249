/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct ipc_part;
struct ipc_ticket;

/* Connects to the owner and sends the request; -1: failed. `again`: the owner closed the connection
 * before an answer; a retry may succeed. */
int ipc_client_begin(const struct ipc_ticket *ticket, bool *again);

/* Receives the next part and validates its figures. Returns its descriptor as a handle of
 * own_file.h, or -1. */
int ipc_client_part(int from, const struct ipc_ticket *ticket, struct ipc_part *part,
                    bool *again);
