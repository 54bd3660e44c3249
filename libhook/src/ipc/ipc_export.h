/* SPDX-License-Identifier: Apache-2.0 */
/* Legacy IPC (cuIpcGetMemHandle): its messages and sockets between processes, and the export. */
#pragma once

#include "driver/driver.h"

struct sockaddr_un;

struct ipc_request {
    uint64_t secret;                 /* proves that the importer was given the handle */
    uint64_t address;                /* the allocation's address in the owner */
    uint64_t id;                     /* identifies the allocation, as addresses are reused */
};

/* The library's content of a CUipcMemHandle, by which processes of the same user open the memory.
 * The socket's name proves nothing: /proc/net/unix shows it to every process, and after the owner's
 * end any process may bind it. */
struct ipc_ticket {
    uint64_t magic;
    uint64_t name[2];                /* random name of the owner's socket */
    uint64_t secret;                 /* proves that the owner answers; never sent to the owner */
    struct ipc_request request;
};
#define IPC_MAGIC 0x6572616873766e02ull

/* The owner's message for each block, with a file descriptor unless the allocation is gone. */
struct ipc_part {
    uint64_t secret;                 /* the ticket's secret */
    uint64_t left;                   /* bytes of this and all later parts */
    uint64_t size;                   /* bytes of this part */
    uint64_t offset;                 /* bytes from the first part's begin to the allocation */
    uint64_t bytes;                  /* size of the allocation */
};

enum ipc_socket_kind { IPC_ABSTRACT, IPC_FILE, IPC_SOCKETS };

/* Writes the socket's address. Returns the address's length in bytes. */
unsigned ipc_socket(enum ipc_socket_kind kind, const uint64_t name[2], struct sockaddr_un *address);

/* Pins the library's allocation that contains the address until it is freed, like an export. */
CUresult ipc_export_pin(CUdeviceptr address);
/* Pins all allocations of the library that share pages with the range, also memory of pools. */
CUresult ipc_export_pin_range(CUdeviceptr address, size_t size);

/* False: not the library's memory; call the driver. */
bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
bool ipc_export_own(const struct ipc_ticket *ticket);   /* whether this process made the ticket */
