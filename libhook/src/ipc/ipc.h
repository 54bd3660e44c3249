/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC: cuIpcGetMemHandle and what follows from it, between processes
 * that both have the library. All functions may be called with no lock held;
 * false: not ours, call the driver.
 */
#ifndef NVSHARE_SHARE_H
#define NVSHARE_SHARE_H

#include <stdbool.h>

#include "interpose/driver.h"

/* What an importer asks for. */
struct share_request {
    uint64_t secret;                 /* shows the owner that the asker was given the handle */
    uint64_t address;                /* where it lies for its owner */
    uint64_t id;                     /* of the allocation, as addresses are used again */
};

/* What is in a handle of ours. Whoever has it may open the memory, if it is
 * the same user's. The socket's name alone opens nothing, and proves nothing:
 * /proc/net/unix shows it to everybody, and when the owner has ended anybody
 * may bind it. */
struct share_ticket {
    uint64_t magic;
    uint64_t name[2];                /* of the socket where it is given out; random */
    uint64_t secret;                 /* shows the importer that the owner answers; never sent to it */
    struct share_request request;
};
#define SHARE_MAGIC 0x6572616873766e02ull

/* What the owner answers to a request: once for each block, with a descriptor
 * of it. No descriptor: there is no such allocation (any more). */
struct share_piece {
    uint64_t secret;                 /* the ticket's */
    uint64_t left;                   /* bytes of all pieces from this one on */
    uint64_t size;                   /* of this one */
    uint64_t offset;                 /* of the allocation in the first piece */
    uint64_t bytes;                  /* the allocation's size */
};

/* The socket's address; its length. */
struct sockaddr_un;
unsigned share_socket(const uint64_t name[2], struct sockaddr_un *address);

/* One block's descriptor and what to say of it, without the secret; -1 if it is gone. */
int share_export(const struct share_request *request, size_t index, struct share_piece *piece);

/* A connection to the owner on which it has been asked, or -1. `again`: the door was
 * shut on us before an answer; it may be worth another try. */
int fetch_begin(const struct share_ticket *ticket, bool *again);

/* The next piece, its figures sound; its descriptor, or -1. */
int fetch_piece(int from, const struct share_ticket *ticket, struct share_piece *piece,
                bool *again);

/* Opens the socket, once for the process, and says in the ticket how to be
 * served there. False: not possible here. */
bool shop_open(struct share_ticket *ticket);

/* Whether it is a ticket of this very process. */
bool shop_own(const struct share_ticket *ticket);

/* In a forked child, which has no such thread and must not keep the socket open. */
void shop_abandon(void);

bool share_give(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
bool import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result);
bool import_close(CUdeviceptr address, CUresult *result);

#endif
