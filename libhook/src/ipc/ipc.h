/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC: cuIpcGetMemHandle and what follows from it, between processes
 * that both have the library. All functions may be called with no lock held;
 * false: not ours, call the driver.
 */
#ifndef NVSHARE_IPC_H
#define NVSHARE_IPC_H

#include <stdbool.h>

#include "interpose/driver.h"

/* What an importer asks for. */
struct ipc_request {
    uint64_t secret;                 /* shows the owner that the asker was given the handle */
    uint64_t address;                /* where it lies for its owner */
    uint64_t id;                     /* of the allocation, as addresses are used again */
};

/* What is in a handle of ours. Whoever has it may open the memory, if it is
 * the same user's. The socket's name alone opens nothing, and proves nothing:
 * /proc/net/unix shows it to everybody, and when the owner has ended anybody
 * may bind it. */
struct ipc_ticket {
    uint64_t magic;
    uint64_t name[2];                /* of the socket where it is given out; random */
    uint64_t secret;                 /* shows the importer that the owner answers; never sent to it */
    struct ipc_request request;
};
#define IPC_MAGIC 0x6572616873766e02ull

/* What the owner answers to a request: once for each block, with a descriptor
 * of it. No descriptor: there is no such allocation (any more). */
struct ipc_part {
    uint64_t secret;                 /* the ticket's */
    uint64_t left;                   /* bytes of all parts from this one on */
    uint64_t size;                   /* of this one */
    uint64_t offset;                 /* of the allocation in the first part */
    uint64_t bytes;                  /* the allocation's size */
};

/* The socket's address; its length. */
struct sockaddr_un;
unsigned ipc_socket(const uint64_t name[2], struct sockaddr_un *address);

/* One block's descriptor and what to say of it, without the secret; -1 if it is gone. */
int ipc_export_part(const struct ipc_request *request, size_t index, struct ipc_part *part);

/* A connection to the owner on which it has been asked, or -1. `again`: the door was
 * shut on us before an answer; it may be worth another try. */
int ipc_client_begin(const struct ipc_ticket *ticket, bool *again);

/* The next part, its figures sound; its descriptor, or -1. */
int ipc_client_part(int from, const struct ipc_ticket *ticket, struct ipc_part *part,
                    bool *again);

/* Opens the socket, once for the process, and says in the ticket how to be
 * served there. False: not possible here. */
bool ipc_server_open(struct ipc_ticket *ticket);

/* Whether it is a ticket of this very process. */
bool ipc_server_own(const struct ipc_ticket *ticket);

/* In a forked child, which has no such thread and must not keep the socket open. */
void ipc_server_abandon(void);

bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
bool ipc_import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result);
bool ipc_import_close(CUdeviceptr address, CUresult *result);

#endif
