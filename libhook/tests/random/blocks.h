/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sequence owns: memory of every kind, streams, the context it is in.
 *
 * The order of all work is determined, else the contents would not be: a
 * block's work is in one stream at a time, and when it is used in another,
 * that one is made to wait (block_enter).
 */
#pragma once

#include "calls.h"

#define BLOCKS 24
#define STREAMS 6
#define MIB ((size_t)1 << 20)
#define GRAIN (2 * MIB)
#define SCRATCH (4 * MIB)            /* no block is larger */
#define HELD_MOST (24 * MIB)         /* by all blocks together */

enum kind { NOTHING, PLAIN, PITCHED, MANAGED, POOLED, MAPPED, PINNED, REGISTERED };

struct block {
    enum kind kind;
    unsigned number;                 /* its name in the transcript: bNUMBER */
    CUdeviceptr address;
    size_t size;
    CUstream stream;                 /* where its last work is */
    bool busy;
    CUcontext context;               /* it was allocated in */
    CUdeviceptr reserved;            /* of MAPPED: where, with a hole behind */
    CUmemGenericAllocationHandle handle;   /* of MAPPED: 0 if it was released already */
    CUmemoryPool pool;               /* of POOLED */
    unsigned long long id;           /* CU_POINTER_ATTRIBUTE_BUFFER_ID as first heard */
};
extern struct block blocks[BLOCKS];
extern CUcontext context;            /* the current one */
extern CUcontext primary;
extern CUdevice device;
extern unsigned char scratch[SCRATCH];
extern const unsigned char *pattern; /* SCRATCH bytes that never change */

struct place {
    CUdeviceptr address;
    size_t room;                     /* to the end of its block */
    char text[48];
};

struct lane {
    CUstream handle;                 /* to pass */
    bool per_thread;                 /* and to which variant of the function */
    CUstream stream;                 /* what that means, for cuStreamSynchronize */
    char text[16];
};

void blocks_begin(void);
/* NULL: there is none, or no slot is free. */
struct block *block_any(void);
struct block *block_of_device(void); /* not one of host memory */
struct block *block_of_kind(enum kind kind); /* after several rolls: NULL, though one may exist */
/* Names the new block in the line of the call that allocated it. */
struct block *block_new(enum kind kind, size_t size, CUdeviceptr address);
void block_gone(struct block *block);
size_t blocks_held(void);
size_t block_size(void);             /* of one to be made; 0: enough is held */
bool block_on_host(const struct block *block);
/* Contents that are known, of one just made. */
void block_fill(struct block *block);
void block_read(struct block *block);
void block_free(struct block *block);        /* as is right for its kind */

/* A random place in it with room for a byte at least; aligned to `grain`. */
struct place place_in(const struct block *block, size_t grain);
struct place place_at(const struct block *block, size_t offset);
void block_enter(struct block *block, CUstream stream);
void wait_for(CUstream stream);
void wait_for_all(void);

struct lane lane_any(void);
struct lane lane_own(void);          /* a stream of the program's if there is one */
struct lane lane_sync(bool per_thread);      /* where synchronous calls work */
struct lane lane_waiting(bool *waits);       /* the same if *waits, which is rolled, else any */
void streams_begin(void);
void streams_end(void);
void stream_made(void);
void stream_destroyed(void);
void streams_asked(void);

#define IN_LANE(name, lane, arguments, ...) \
    ((lane).per_thread ? DO(name##_ptsz, arguments, __VA_ARGS__) : DO(name, arguments, __VA_ARGS__))
#define UNPACK(...) __VA_ARGS__
/* The function that waits, or the other, which takes a stream behind the same arguments. */
#define WAIT_OR_NOT(waits, sync, async, lane, arguments, format, ...)                       \
    ((waits) ? SYNC(sync, lane, arguments, format, __VA_ARGS__)                             \
             : IN_LANE(async, lane, (UNPACK arguments, (lane).handle), format ", %s",       \
                       __VA_ARGS__, (lane).text))
#define SYNC(name, lane, arguments, ...) \
    ((lane).per_thread ? DO(name##_ptds, arguments, __VA_ARGS__) : DO(name, arguments, __VA_ARGS__))
