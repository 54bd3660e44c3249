/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ipc_ticket;

/* Opens the sockets, once for the process, and says in the ticket how to be
 * served there. False: not possible here. */
bool ipc_server_open(struct ipc_ticket *ticket);

/* Whether it is a ticket of this very process. */
bool ipc_server_own(const struct ipc_ticket *ticket);
