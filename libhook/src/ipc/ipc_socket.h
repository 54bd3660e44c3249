/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

struct sockaddr_un;

enum ipc_place { IPC_ABSTRACT, IPC_IN_FILES, IPC_PLACES };

/* Writes the address of the socket with this name; returns the address's length. */
unsigned ipc_socket(enum ipc_place place, const uint64_t name[2], struct sockaddr_un *address);
/* Creates the socket, to be removed when the process ends. Returns a handle of own_file.h; -1: not
 * possible here. */
int ipc_socket_listen(enum ipc_place place, const uint64_t name[2]);
