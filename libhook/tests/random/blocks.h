/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of a sequence: memory of every kind, streams, the current context.
 *
 * The order of all work is determined, because the contents would vary otherwise:
 * a block's work is in one stream at a time, and before another stream uses the
 * block, that stream waits for the earlier work (block_enter).
 */
#pragma once

#include "calls.h"

#define BLOCKS 24
#define STREAMS 6
#define MIB ((size_t)1 << 20)
#define GRAIN (2 * MIB)
#define SCRATCH (4 * MIB)            /* no block is larger */
#define HELD_MOST (24 * MIB)         /* bytes of all blocks together */

enum kind { NOTHING, PLAIN, PITCHED, MANAGED, POOLED, MAPPED, PINNED, REGISTERED };

struct block {
    enum kind kind;
    unsigned number;                 /* its name in the transcript: bNUMBER */
    CUdeviceptr address;
    size_t size;
    CUstream stream;                 /* the stream of the block's last work */
    bool busy;
    CUcontext context;               /* in which the block was allocated */
    CUdeviceptr reserved;            /* of MAPPED: begin of the range, which ends with a hole */
    CUmemGenericAllocationHandle handle;   /* of MAPPED; 0: already released */
    CUmemoryPool pool;               /* of POOLED: the pool of the memory */
    unsigned long long id;           /* CU_POINTER_ATTRIBUTE_BUFFER_ID at the first query */
};
extern struct block blocks[BLOCKS];
extern CUcontext context;            /* the current context */
extern CUcontext primary;
extern CUdevice device;
extern unsigned char scratch[SCRATCH];
extern const unsigned char *pattern; /* SCRATCH bytes that never change */

struct place {
    CUdeviceptr address;
    size_t room;                     /* bytes to the end of the block */
    char text[48];
};

struct lane {
    CUstream handle;                 /* the argument of calls */
    bool per_thread;                 /* true: for the _ptsz or _ptds variant */
    CUstream stream;                 /* the stream meant by both */
    char text[16];
};

void blocks_begin(void);
/* A random block. NULL: there is no block. */
struct block *block_any(void);
struct block *block_of_device(void); /* as block_any(), but no host memory */
struct block *block_of_kind(enum kind kind); /* NULL: BLOCKS random tries found no such block */
/* Adds the new block's name to the printed line of the call that allocated the block. */
struct block *block_new(enum kind kind, size_t size, CUdeviceptr address);
void block_gone(struct block *block);
size_t blocks_held(void);
size_t block_size(void);             /* of a new block; 0: blocks have enough bytes */
bool block_on_host(const struct block *block);
/* Fills a new block with known contents. */
void block_fill(struct block *block);
void block_read(struct block *block);
void block_free(struct block *block);        /* by the function for its kind */

/* A random place within the block, aligned to `grain`. */
struct place place_in(const struct block *block, size_t grain);
struct place place_at(const struct block *block, size_t offset);
void block_enter(struct block *block, CUstream stream);
void wait_for(CUstream stream);
void wait_for_all(void);

struct lane lane_any(void);
struct lane lane_own(void);          /* a created stream if one exists */
struct lane lane_sync(bool per_thread);      /* the stream of synchronous calls */
struct lane lane_waiting(bool *waits);       /* rolls *waits: lane_sync(), else any */
void streams_begin(void);
void streams_end(void);
void stream_made(void);
void stream_destroyed(void);
void streams_asked(void);

#define IN_LANE(name, lane, arguments, ...) \
    ((lane).per_thread ? DO(name##_ptsz, arguments, __VA_ARGS__) : DO(name, arguments, __VA_ARGS__))
#define UNPACK(...) __VA_ARGS__
/* Calls `sync`, or `async` with a stream behind the same arguments if not `waits`. */
#define WAIT_OR_NOT(waits, sync, async, lane, arguments, format, ...)                       \
    ((waits) ? SYNC(sync, lane, arguments, format, __VA_ARGS__)                             \
             : IN_LANE(async, lane, (UNPACK arguments, (lane).handle), format ", %s",       \
                       __VA_ARGS__, (lane).text))
#define SYNC(name, lane, arguments, ...) \
    ((lane).per_thread ? DO(name##_ptds, arguments, __VA_ARGS__) : DO(name, arguments, __VA_ARGS__))
