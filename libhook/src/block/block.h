/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: what moves between card and host. A block is a run of whole pages
 * at an address that never changes, with one physical allocation behind it
 * while it is resident.
 *
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_BLOCK_H
#define NVSHARE_BLOCK_H

#include <stdbool.h>

#include "client/client_state.h"

/* Large enough that remapping (30 us) hides behind the copy (600 us at bus
 * speed), small enough that room is handed on early and little is wasted. */
#define BLOCK_SIZE ((size_t)32 << 20)

enum block_state {
    BLOCK_EMPTY,                     /* never brought in: holds nothing */
    BLOCK_RESIDENT,
    BLOCK_LEAVING,                   /* being copied out; still mapped */
    BLOCK_SWAPPED,                   /* its bytes are in its host slot */
    BLOCK_COMING,                    /* mapped; being copied in */
    BLOCK_SHARED,                    /* others reach it too: on the card for good, and pinned */
    BLOCK_LOST, /* its bytes are nowhere any more (context_failed.c), and it counts nowhere */
};

struct host_slot {
    struct host_slab *slab;          /* NULL: none */
    char *address;
};

/* What examine.cu finds in a block. */
struct content {
    uint64_t sum[4];
    uint64_t any;                    /* all words, or-ed */
};

/* What was seen of a block while the program that has it stood still. */
struct look {
    struct content part, all;        /* of a small part of its words, of all of them */
    bool whole;                      /* `all` is known; if not, the block has changed for certain */
    uint64_t turn;                   /* the client's when it was; it holds until the next one. 0: never */
};

struct block {
    CUdeviceptr address;
    size_t size;
    struct client *client;
    enum block_state state;
    bool doomed;                     /* freed while on the move; its mover finishes it */
    bool immovable;                  /* now */
    size_t managed;                  /* bytes of managed memory that it is, at the driver's address */
    bool hosted;                     /* managed: away, and counted as host memory */
    bool mostly_read;                /* managed: to be advised again once it is away */
    bool sent;                       /* managed: somewhere by the library, once at least */
    CUmemGenericAllocationHandle handle;
    struct host_slot slot;           /* kept while resident, unless host memory is short */
    uint64_t right;                  /* the client's turn before which its slot held what it holds;
                                        see block_presaved(). 0: never */
    struct look look;
    struct content part;             /* as it was when it left for the last time, if `parted` */
    struct content content;          /* of the slot, if `known`; of what is leaving, if `looked` */
    bool parted, looked, known;
    bool zero;                       /* swapped without a slot: cleared when it comes back */
    bool seen, light;                /* looked at once; all zero when that was last done */
    bool restless;                   /* had changed when it left for the last time */
    bool presaving;                  /* LEAVING only until it has been copied: it stays */
    struct block *older, *younger;
};

void block_set_state(struct block *block, enum block_state state);
/* It is on the card, and its slot holds the same: the program has not run since they
 * were made equal. */
bool block_presaved(const struct block *block);
/* They have just been made equal. What a running program has may change at once. */
void block_note_presaved(struct block *block);
/* A new block, empty, at the end of its client's list; counted as allocated. NULL: no memory. */
struct block *block_new(struct client *client, CUdeviceptr address, size_t size);
/* Who may reach a client's memory: fills at most CLIENTS_MAX entries and returns how many. */
size_t block_access(const struct client *client, CUmemAccessDesc *access);
/* Creates and maps physical memory for an EMPTY or SWAPPED block and counts it
 * as resident; the state is the caller's to set. Leaves everything as it was
 * if the driver refuses. */
CUresult block_map(struct block *block);
/* The opposite. An error is the context's (it has failed for good): the
 * memory then stays counted, as it stays on the card. */
CUresult block_unmap(struct block *block);
/* It goes without a copy, wherever it is, but for one on the move: that stays as it is. */
void block_lose(struct block *block);
/* alias.c: mapping and unmapping at the places where the program has mapped it besides. */
CUresult block_map_aliases(struct block *block);
CUresult block_unmap_aliases(struct block *block);
/* Unmaps, gives back its host slot and forgets it, now or, if it is on the
 * move, as soon as it has arrived. Its addresses are given back as well. */
void block_free(struct block *block);

/* managed_move.c: starts to bring managed memory that is LEAVING or COMING to where it
 * goes, and settles it once it is there. Without memory_lock, which may not wait
 * for the bus: the driver may be done when it returns. */
CUresult managed_send(struct block *block, CUstream stream);
void managed_sent(struct block *block);
/* managed.c: all managed memory of a context, which is about to go. */
void managed_context_ends(CUcontext context);

/* context_failed.c: something could not be moved. If that is because the context has failed for good,
 * all of the client's memory goes. What is on the move has failed as well, and goes when that
 * is answered. Service thread. */
void release_if_context_failed(struct client *client);

/* host.c: host memory for swapped blocks. */

/* Makes slabs ahead with several threads, up to `allowance` bytes in all, while
 * the caller goes on. Ended with host_provided(), without the lock. */
#define PROVIDERS_MAX 8
struct host_provision {
    struct client *client;
    CUcontext context;
    uint64_t target;
    char *memory;                    /* mapped for slabs, of which so many bytes are not taken */
    uint64_t mapped;
    struct host_slab *slab;          /* of which pieces are to be filled yet; NULL: none is begun */
    unsigned count;
    pthread_t threads[PROVIDERS_MAX];
};
void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision);
void host_provided(struct host_provision *provision);

/* False: none left within `allowance` bytes for this client, or the machine
 * has none. May release and retake memory_lock (service thread only). For
 * managed memory the driver has it; it is counted all the same. */
bool host_take(struct client *client, struct block *block, uint64_t allowance);
void host_give(struct block *block);
/* More host memory than that no block of the client can have use for. */
uint64_t host_useful(const struct client *client);
/* Releases slabs that are empty while the client holds more than `allowance`.
 * Service thread only, in client->copy_context if there is one; releases and retakes
 * memory_lock. */
void host_trim(struct client *client, uint64_t allowance);
/* Whether copies to and from its slot go straight over the bus, for which its slab is registered
 * anew where that is needed; if not, the calls that start them may take as long as the
 * copies. Service thread only, in client->copy_context; may release and retake memory_lock. */
bool host_registered(const struct block *block);
/* client->copy_context is about to go, with all that was registered in it. `drained`: nothing
 * is in flight there. With service_lock, too; releases and retakes memory_lock. */
void host_leave_context(struct client *client, bool drained);

#endif
