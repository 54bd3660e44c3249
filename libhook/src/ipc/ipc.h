/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC: cuIpcGetMemHandle and what follows from it, between processes
 * that both have the library. What they send each other.
 */
#pragma once

#include <stdint.h>

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
