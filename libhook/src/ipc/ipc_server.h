/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ipc_ticket;

/* The socket's address; its length. */
struct sockaddr_un;
unsigned ipc_socket(const uint64_t name[2], struct sockaddr_un *address);

/* Opens the socket, once for the process, and says in the ticket how to be
 * served there. False: not possible here. */
bool ipc_server_open(struct ipc_ticket *ticket);

/* Whether it is a ticket of this very process. */
bool ipc_server_own(const struct ipc_ticket *ticket);

/* In a forked child, which has no such thread and must not keep the socket open. */
void ipc_server_abandon(void);
