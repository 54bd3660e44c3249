/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct ipc_part;
struct ipc_ticket;

/* A connection to the owner on which it has been asked, or -1. `again`: the door was
 * shut on us before an answer; it may be worth another try. */
int ipc_client_begin(const struct ipc_ticket *ticket, bool *again);

/* The next part, its figures sound; its descriptor as a handle of own_file.h, or -1. */
int ipc_client_part(int from, const struct ipc_ticket *ticket, struct ipc_part *part,
                    bool *again);
