/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ipc_ticket;

/* Opens the sockets, once for the process, and writes their name and secrets to the ticket. False:
 * not possible in this process. */
bool ipc_server_open(struct ipc_ticket *ticket);

/* Whether the ticket is of this very process. */
bool ipc_server_own(const struct ipc_ticket *ticket);
