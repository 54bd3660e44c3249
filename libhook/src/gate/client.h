/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/locked.h"
#include "nvshare/protocol.h"

#define CLIENTS_MAX 30                /* each has two bits of gate_closed; GATE_AJAR has three */
#define OPEN_COMMITS_MAX 16
#define REASON_LONGEST 448
#define POSTPONED_MOST 16

struct block;
struct host_slab;

struct client {
    CUdevice device;
    uint8_t uuid[16];
    unsigned index;                  /* in clients[]; selects its two bits in gate_closed */
    char name[89];                   /* NVSHARE_NAME, truncated to a record's length; "": none */
    char gang[89];                   /* NVSHARE_GANG, in the same way */

    /* Everything from here on is protected by memory_lock. */

    struct nvshare_memory memory;    /* as reported to the daemon with each record */
    struct nvshare_limits limits;
    bool reported;                   /* the daemon knows the current `memory` */

    /* True from RUN to STOP; while false, GATE_STOPPED(client) is set. */
    bool running;
    uint64_t turns;                  /* number of turns that have begun, plus one */
    uint64_t opened;                 /* us: when the last turn began */
    uint64_t idled;                  /* us of this turn in which no work was in flight */
    _Atomic bool stopping;           /* from STOP until STOPPED, which reports waiting threads */
    bool paced;                      /* other clients wait: bound this client's work in flight */
    bool squeezed;                   /* other clients may wait for memory: keep no spares */
    bool steps;                      /* RUN had STEP: let launches through one at a time */
    uint64_t step_pause;             /* us from the end of one launch to the next */
    bool reports_idle;
    bool reports_busy;
    bool want_sent;
    bool prints_waits;               /* wake the service thread when a thread waits (waiting.c) */
    bool drained;                    /* no work is in flight: from STOPPED to RUN */
    /* Memory is absent or exceeds the room, or `remapping`. While true, GATE_STARVED is set. */
    bool starved;
    bool starved_reported;           /* a MEMORY report was sent since `starved` became true */
    bool remapping;                  /* exclusive.c keeps the gate closed to replace memory */
    uint64_t idle_window;            /* us without a submission before IDLE is sent */

    enum nvshare_pin_reason pin_reason;        /* why its memory is never evicted; client.c */

    uint64_t absent;                 /* bytes in blocks that are not BLOCK_RESIDENT */
    uint64_t slab_use;               /* bytes in blocks that may need a place in a host slab */
    uint64_t managed_away;           /* bytes of swapped managed blocks; part of memory.host */
    struct block *blocks;            /* all blocks, the oldest first */
    struct block *youngest;
    struct host_slab *host_slabs;    /* the newest first */
    struct host_slab *host_room;     /* first slab with free pages; NULL: all are full */
    uint64_t host_slabs_made;
    unsigned host_empty;             /* slabs without any block */
    /* This client's swapped bytes on another GPU (tier/peer.c); their limit in the last EVICT. */
    uint64_t borrowed, loan;
    uint64_t returning;              /* bytes in swap_return(); reports add them to memory.host */
    uint64_t dirty;                  /* bytes swapped to that GPU without a copy on the host */
    uint64_t borrowed_reported, dirty_reported;      /* as reported to the daemon last */
    uint8_t lender_uuid[16];
    /* The client's file (block/store.c): bytes in it; limit and number of the last STORE; errno of
     * the last failure; whether one of these has yet to be reported. */
    uint64_t stored, file, store_number;
    int store_error;
    bool store_changed;
    uint64_t store_progress;         /* us: last time when a write ended or none was in flight */
    CUdevice lender;                 /* GPU that lends memory; CU_DEVICE_INVALID: none usable */
    int node;                        /* NUMA node near this device; -1: any */
    /* Threads that allocate host slabs now (tier/host.c): for an eviction, and for PREALLOCATE. */
    unsigned allocators, preallocators;
    uint64_t host_most;              /* bytes: `host` of the last EVICT, LOAD or PREALLOCATE */
    bool preallocates;               /* preallocators may begin another slab */

    int socket;                      /* a handle of own_file.h; -1: no daemon is connected */
    uint64_t last_commit;            /* number of the last COMMIT sent */
    /* COMMITs of threads that want to pin memory, until it is counted as pinned. */
    struct open_commit {
        uint64_t number;             /* 0: the entry is free */
        uint64_t wanted;             /* bytes requested in all, */
        uint64_t pins;               /* and to be pinned */
        uint64_t granted;            /* us: when the grant was read; 0: not yet */
    } open_commits[OPEN_COMMITS_MAX];
    bool waits_for_entry;            /* a thread waits for a free entry */
    uint64_t answered_commit;        /* number of the last answered COMMIT */
    struct nvshare_limits commit_answer;     /* the last answer */
    char reason[REASON_LONGEST];     /* reason of the refusal, for people; "": unknown */
    bool reason_begun;               /* a part of `reason` has arrived, its LIMITS has not */
    char printed_reason[REASON_LONGEST];     /* last reason printed on stderr */
    unsigned introduced;             /* number of HELLOs; each voids all open COMMITs */
    /* Futex word (driver/bell.h) that changes at each answer to a COMMIT, free entry, and change of
     * the socket. memory_changed would not do: the waiting thread may be cancelled. */
    _Atomic uint32_t commit_bell;

    /* Only the service thread uses the fields below; context_ends() clears the copy context. */

    pthread_t thread;
    int wakes, wake;                 /* a socket pair that wakes the service thread */
    CUcontext own_context;           /* created while the program had none; or NULL */
    CUcontext copy_context;          /* of the copy stream; NULL: not created yet */
    CUstream copy_stream;
    unsigned undrained;              /* number of drains in a row that gave up */
    struct nvshare_order postponed[POSTPONED_MOST];  /* orders to carry out later, */
    unsigned postponed_count;        /* the oldest first */
};

#define GATE_STOPPED(client) ((uint64_t)1 << (2 * (client)->index))
#define GATE_STARVED(client) ((uint64_t)2 << (2 * (client)->index))

/* Protects all bookkeeping of memory and clients. Held for short sections: driver calls that map,
 * unmap or query, and the sending of one record; never a copy over the bus, a wait for work or for
 * the daemon. Its holder takes only the locks of the gate, captures and the list of contexts. */
extern pthread_mutex_t memory_lock;
/* Broadcast when a block stops moving, or an exclusive operation has ended. */
extern pthread_cond_t memory_changed;

/* Held by a service thread while it uses contexts, streams or events, and by a program thread that
 * destroys a context. Taken before memory_lock. */
extern pthread_mutex_t service_lock;

extern struct client *clients[CLIENTS_MAX];       /* by device ordinal; never removed */
#define EACH_CLIENT(client)                                                                \
    for (unsigned index = 0; index < CLIENTS_MAX; index++)                                 \
        for (struct client *client = __atomic_load_n(&clients[index], __ATOMIC_ACQUIRE);   \
             client != NULL; client = NULL)

/* True: wrappers must only call the driver, because the process never had a client or the calling
 * thread holds memory_lock (client_is_called_back()). */
bool client_none(void);
/* If client_none(), the function returns `value`; else memory_lock is held to the block's end. */
#define LOCKED_OR_RETURN(value)                                                    \
    if (client_none())                                                             \
        return value;                                                              \
    LOCKED(memory_lock)
/* Whether the calling thread is inside a driver call of the library, in a callback of a tracing
 * tool (CUPTI). Such a thread must not wait, nor take memory_lock, which it may hold. */
bool client_is_called_back(void);
void client_thread_is_ours(void);
unsigned clients_count(void);
void client_enter(struct client *client);          /* memory_lock held */
void clients_watch_forks(void);

struct client *client_on(CUdevice device);        /* of this device; or NULL */
struct client *client_here(void);                 /* of the current context's device; or NULL */
struct client *client_current(void);              /* the same; NULL if client_is_called_back() */

/* Whether a client carries out a STOP: its gate stays closed until its drain ends. */
bool clients_stopping(void);

/* Reports that a thread is about to wait at the gate. The caller does not hold memory_lock. */
void clients_want(void);

CUresult device_uuid(CUdevice device, CUuuid *uuid);

void client_wake(struct client *client);          /* wakes the client's service thread */
/* Creates or replaces the socket pair client->wakes and client->wake. False: not possible. */
bool client_make_wake(struct client *client);
/* Waits for a wake-up, an order or the timeout (NEVER: none). Returns the connection if it can be
 * read or has ended, else -1. Service thread, which alone changes client->socket; takes no lock. */
int client_wait(struct client *client, int64_t timeout_us);
/* Keeps an order, to be carried out after the orders postponed before. False: no space. */
bool client_postpone(struct client *client, const struct nvshare_order *order);
bool client_next_postponed(struct client *client, struct nvshare_order *order);
uint64_t now_microseconds(void);                  /* CLOCK_MONOTONIC */
#define NEVER INT64_MAX                           /* in place of us: nothing is due */

/* The following functions are called with memory_lock held. */

/* Called after any change of `memory` or `limits`: recomputes `starved`, opens or closes the gate,
 * and reports at once if a running client has become starved. */
void client_update(struct client *client);
void client_changed(struct client *client);       /* the service thread will soon report `memory` */
uint64_t client_need(const struct client *client);
bool client_is_whole(const struct client *client);      /* all is resident, within memory.room */
uint64_t client_free_room(const struct client *client); /* bytes that may be mapped now */
bool client_may_keep_freed(const struct client *client);
/* Memory that the program has freed but the library keeps, for reuse or until work that uses it has
 * ended, is released before any request is refused for want of memory. */

#define RECLAIM_ALL UINT64_MAX

/* Releases such memory of one kind: at least `bytes`, or all of it. `until` 0: only memory that no
 * work uses, and none of a pool. Else a deadline in us: also waits for work, with memory_lock
 * released, and releases what pools keep by their thresholds. False: released nothing. */
typedef bool reclaimer(struct client *client, uint64_t bytes, uint64_t until);
/* Sets the list of reclaimers, which ends with NULL, before there is a client. */
void reclaim_from(reclaimer *const *all);
bool reclaim(struct client *client, uint64_t bytes, uint64_t until);

/* Sends the report with the client's figures. On failure the service thread reconnects. */
void client_send(struct client *client, struct nvshare_report report);
/* As client_send(), but returns the report instead of sending it. */
struct nvshare_report client_report(const struct client *client, struct nvshare_report report);
/* Sends names, STORED if the file contains bytes, and HELLO. No lock is needed. False: failed. */
bool client_introduce(const struct client *client, int socket, const struct nvshare_report *stored,
                      const struct nvshare_report *hello);

/* Pins the client and prints why; the first reason stays. memory_lock is not held. Swapped memory
 * is loaded before the gate opens; if called inside the gate, all memory is resident already. */
void client_pin(struct client *client, enum nvshare_pin_reason reason);

/* Pins all clients of this process, also later clients. clients_pin_reason(): why, or NONE. */
void clients_pin(enum nvshare_pin_reason reason);
enum nvshare_pin_reason clients_pin_reason(void);

/* Registers at_exit() of client.c; called right before cuInit. */
void process_end_watch(void);

/* The connection to the daemon, a handle of own_file.h. Without locks. */

int connection_open(void);             /* -1 and errno */
bool connection_send(int connection, const struct nvshare_report *report);
/* 1: received, 0: none has arrived in time, -1: the connection has ended. `descriptor` receives a
 * handle of the descriptor sent with the order, or -1; NULL: such a descriptor is closed. */
int connection_receive(int connection, struct nvshare_order *order, int *descriptor,
                       int timeout_ms);
/* Receives the next order if it has arrived and is of this type. */
bool connection_next(int connection, unsigned type, struct nvshare_order *order);

/* The daemon's grants to a client. With memory_lock held. */

/* Waits, releasing the lock, until need may grow by `size` bytes. False: refused. */
bool client_commit(struct client *client, uint64_t size);
/* As client_commit(), for memory of which `pins` bytes will be pinned. The daemon counts these as
 * pinned until this thread calls client_settle(), when memory.pinned contains them or they will not
 * be pinned. `until`: deadline in us of waits for freed memory. */
bool client_commit_pinned(struct client *client, uint64_t size, uint64_t pins, uint64_t until);
uint64_t client_patience_ends(void);
void client_settle(void);
/* Carries out LIMITS, perhaps the answer to a COMMIT. The caller does not hold memory_lock. */
void client_set_limits(struct client *client, const struct nvshare_order *order);
/* Records the answer to a COMMIT; NULL: none will arrive. Voids earlier ungranted COMMITs. */
void client_commit_answered(struct client *client, uint64_t number,
                            const struct nvshare_limits *answer);
/* Appends the text of a REASON, for the next refusal. */
void client_append_refusal(struct client *client, const char *text, size_t size);
uint64_t client_to_pin(const struct client *client);    /* bytes: `to_pin` of a report */
/* Gives up grants that were unused too long. Returns the us until the next one ends, or NEVER. */
int64_t client_expire_grants(struct client *client);
/* Waits until memory.beyond may grow by `bytes`, and adds them. False: refused. */
bool client_go_beyond(struct client *client, uint64_t bytes);
