/* SPDX-License-Identifier: Apache-2.0 */
/* A tier holds the bytes of swapped blocks: it provides places of a given size, and copies
 * between the card and a place. The tiers are listed in tiers.def; no file outside this room names
 * one of them. What other rooms must know of a tier is a property or an operation of struct tier.
 *
 * To add a tier: implement the operations in a file of this room, and name it in tiers.def. State
 * of a client that the tier needs is a record in that file, by client index.
 *
 * memory_lock is held in all operations but settle(); only the operations that say so may release
 * it. take(), copy() and settle() run on the service thread, in client->copy_context. */
#pragma once

#include "driver/driver.h"

#define PAGE ((size_t)2 << 20)       /* granularity of the driver's mappings and of places */
#define ROUNDED_UP(bytes, grain) (((bytes) + (grain) - 1) / (grain) * (grain))
#define WHOLE_PAGES(bytes) ROUNDED_UP(bytes, PAGE)

/* So large that a copy (600 us) hides the remapping (30 us); a larger block frees memory later. */
#define BLOCK_SIZE ((size_t)32 << 20)

struct block;
struct client;
struct nvshare_order;

struct place {
    const struct tier *tier;         /* NULL: no place */
    union {
        struct {
            union {
                void *record;        /* the tier's record of the place, */
                CUmemGenericAllocationHandle handle;     /* or the driver's */
            };
            union {
                char *memory;        /* where threads read the bytes, if tier->readable */
                CUdeviceptr address; /* where the client's GPU reads the bytes, if tier->lend */
            };
        };
        struct {                     /* of managed blocks; valid even while `tier` is NULL */
            size_t bytes;            /* as allocated; block->size is rounded up */
            CUdevice device;
            bool mostly_read;        /* read-mostly advice was withdrawn; settle() restores it */
            bool sent;               /* prefetched by the library at least once */
        } managed;
    };
};

enum settled {
    SETTLED,
    UNSETTLED,                       /* the copy failed; the place still has the bytes */
    LOST,                            /* the place does not have the bytes any more */
};

/* How the client's figure memory.host, which the daemon bounds, counts what is in a tier. */
enum tier_cost {
    COSTS_NOTHING,
    COSTS_PLACES,                    /* counts the sizes of the places */
    COSTS_MEMORY,                    /* the tier itself counts the memory that it holds */
};

/* Moves a block on to a tier with `store`, as a copy of the bytes at a readable place. */
struct tier_write {
    size_t size, left;               /* bytes; bytes not written yet. 0 left: the write has ended */
    int error;                       /* errno; 0: no error so far */
    _Atomic bool cancelled;          /* the write soon ends with ECANCELED */
    bool overwritten;                /* the source has changed: the written bytes are useless */
    struct block *block;             /* NULL: the block was freed or has given up its place */
    struct place place;              /* if `block` is NULL: the source of the write, to be freed */
};

/* A tier to which block/store.c moves blocks on, from a readable place. */
struct tier_store {
    /* Opens the client's file by a duplicate of `descriptor`. If an earlier file has bytes in use,
     * or `descriptor` is -1, the earlier file stays. Returns 0 or an errno; ENOSYS: the kernel
     * lacks close_range() (Linux 5.9). May release the lock. */
    int (*open)(struct client *client, int descriptor);
    /* Whether the client has a file. May be called without the lock by its service thread. */
    bool (*is_open)(const struct client *client);
    /* Called after tier_use(client)->limit has changed. */
    void (*limited)(struct client *client);
    /* Starts to write `size` bytes from `memory`, which stay there until the write has ended, to a
     * place within the limit. NULL: no such place is free, or no memory to record it. */
    struct tier_write *(*write)(struct client *client, size_t size, const char *memory);
    /* Makes what was written a block's place. */
    void (*keep)(struct tier_write *write, struct place *place);
    /* Frees a write that has ended, and its place. */
    void (*discard)(struct tier_write *write);
};

struct tier {
    /* Finds a place for `size` bytes. memory.host may grow to `allowance`. May wait for threads
     * that make host memory (`patient`: also for threads of low priority), but not for the bus.
     * False: no place now. NULL: blocks are not evicted to this tier. May release the lock. */
    bool (*take)(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place);
    /* Frees the place and its bytes. Must not wait. */
    void (*give)(struct client *client, size_t size, struct place *place);

    /* Starts to copy `size` bytes to the place (`out`) or to the card, in stream order, from
     * `offset` in the block mapped at `address`. Must release the lock if the driver may
     * wait for the bus. After an error no more copies are started for this block. */
    CUresult (*copy)(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream);
    /* Called without memory_lock when all copies of the block have ended, completely or not;
     * may wait. NULL: nothing to do. */
    enum settled (*settle)(struct place *place, CUdeviceptr address);

    bool pieces;                     /* copy() can copy a part of a block */
    bool keeps;                      /* the place keeps the bytes after a load */
    bool over_bus;                   /* copies run at the full speed of the bus */
    bool managed;                    /* takes managed blocks, and no others */
    bool readable;                   /* threads can read a place's bytes at place->memory */
    bool of_driver;                  /* bytes that a checkpoint of the process would not keep */
    enum tier_cost cost;

    /* The daemon lends the tier's memory, up to tier_use(client)->limit, and takes it back: blocks
     * are then copied to a tier behind this one. Allows `loan` bytes on the GPU `lender`, or none
     * while blocks are on another lender. NULL: not lent. Exactly one tier is. */
    void (*lend)(struct client *client, uint64_t loan, const uint8_t lender[16]);
    const struct tier_store *store;  /* NULL: blocks are not moved on to it. Exactly one has it */

    /* Each of the operations below is NULL if the tier has nothing to do. */

    /* The client is new, or its process has moved to another GPU, with no block on the card.
     * memory_lock need not be held. */
    void (*attach)(struct client *client);
    /* An order is about to be carried out. NULL: a HELLO, or the end of the connection, has ended
     * what earlier orders had begun. */
    void (*order)(struct client *client, const struct nvshare_order *order);
    /* `bytes` are about to be evicted while a client waits; 0: such evictions have ended. Service
     * thread; may release the lock. */
    void (*expect)(struct client *client, uint64_t bytes);
    /* A block has got a place, in any tier. */
    void (*placed)(struct client *client, size_t size);
    /* Releases memory in which no block is while memory.host exceeds `allowance`. Service thread,
     * in client->copy_context if that is not NULL; may release the lock. */
    void (*trim)(struct client *client, uint64_t allowance);
    /* Whether trim() may find memory to release. */
    bool (*has_spare)(const struct client *client);
    /* A copy to the tier has failed: no more blocks are evicted to it, and a block's place there
     * is given up unless it alone has the bytes. */
    void (*failed)(struct client *client);
    /* All copies of LOADs have ended. */
    void (*loaded)(struct client *client);
    /* client->copy_context is about to end. `drained`: no work is in flight in it. service_lock is
     * held, too; may release memory_lock. */
    void (*leave_context)(struct client *client, bool drained);
};

extern const struct tier *const tiers[];         /* as listed in tiers.def, ended by NULL */
#define EACH_TIER(each)                                                                    \
    for (const struct tier *const *entry = tiers, *each; (each = *entry) != NULL; entry++)

#define TIER(name) extern const struct tier tier_##name;
#include "tier/tiers.def"
#undef TIER

/* What a client has in one tier. */
struct tier_use {
    uint64_t bytes;                  /* of its blocks' places */
    uint64_t limit;                  /* bytes; of a tier with `lend` or `store` */
    uint8_t lender[16];              /* UUID of the GPU that lends the memory */
};
struct tier_use *tier_use(const struct client *client, const struct tier *tier);
const struct tier *tier_lent(void);              /* the tier with `lend` */
const struct tier *tier_storing(void);           /* the tier with `store` */

/* Takes a place in the tier, and counts it. False: *place is as before. May release the lock. */
bool tier_take(struct client *client, const struct tier *tier, size_t size, uint64_t allowance,
               bool patient, struct place *place);
/* Counts a place that tier->store->keep() has made. */
void tier_keep(struct client *client, const struct tier *tier, struct tier_write *write,
               struct place *place);
/* Frees the place; no effect if there is none. */
void tier_give(struct client *client, size_t size, struct place *place);

/* Call the operations of all tiers. */
void tiers_attach(struct client *client);
void tiers_order(struct client *client, const struct nvshare_order *order);
void tiers_expect(struct client *client, uint64_t bytes);
void tiers_trim(struct client *client, uint64_t allowance);
bool tiers_have_spare(const struct client *client);
void tiers_loaded(struct client *client);
void tiers_leave_context(struct client *client, bool drained);

/* Trims until memory.host may grow by `size` to at most `allowance`. False: it may not. */
bool tiers_make_room(struct client *client, size_t size, uint64_t allowance);
/* Counts blocks that are not managed, which tiers with readable places may have to take. */
void tiers_count_blocks(struct client *client, uint64_t bytes, bool more);
/* The upper bound of memory.host that blocks of the client could use. */
uint64_t tiers_useful(const struct client *client);
bool tiers_hold_driver_memory(const struct client *client);
