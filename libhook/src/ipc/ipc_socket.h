/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

struct sockaddr_un;

enum ipc_place { IPC_ABSTRACT, IPC_IN_FILES, IPC_PLACES };

/* The address of the socket with this name; its length. */
unsigned ipc_socket(enum ipc_place place, const uint64_t name[2], struct sockaddr_un *address);
/* Makes it, to be removed when the process ends. A handle of own_file.h; -1: not possible here. */
int ipc_socket_listen(enum ipc_place place, const uint64_t name[2]);
