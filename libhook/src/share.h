/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC: cuIpcGetMemHandle and what follows from it, between processes
 * that both have the library. All functions may be called with no lock held;
 * false: not ours, call the driver.
 */
#ifndef NVSHARE_SHARE_H
#define NVSHARE_SHARE_H

#include <stdbool.h>

#include "driver.h"

/* What is in a handle of ours. Whoever has it may open the memory, if it is
 * the same user's. */
struct share_ticket {
    uint64_t magic;
    uint64_t name[2];                /* of the socket where it is given out; random */
    uint64_t address;                /* where it lies for its owner */
    uint64_t id;                     /* of the allocation, as addresses are used again */
};
#define SHARE_MAGIC 0x6572616873766e01ull

/* What the owner answers to a ticket: once for each block, with a descriptor
 * of it. No descriptor: there is no such allocation any more. */
struct share_piece {
    uint64_t left;                   /* bytes of all pieces from this one on */
    uint64_t size;                   /* of this one */
    uint64_t offset;                 /* of the allocation in the first piece */
    uint64_t bytes;                  /* the allocation's size */
};

/* The socket's address; its length. */
struct sockaddr_un;
unsigned share_socket(const uint64_t name[2], struct sockaddr_un *address);

/* Whether it is a ticket of this very process. */
bool share_own(const struct share_ticket *ticket);

bool share_give(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
bool import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result);
bool import_close(CUdeviceptr address, CUresult *result);

#endif
