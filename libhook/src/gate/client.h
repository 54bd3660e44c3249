/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/locked.h"
#include "nvshare/protocol.h"

#define CLIENTS_MAX 30                /* gate_closed: 2 bits for each client, 3 bits of GATE_AJAR */
#define OPEN_COMMITS_MAX 16
#define REASON_LONGEST 448
#define POSTPONED_MOST 16

struct block;

struct client {
    CUdevice device;
    uint8_t uuid[16];
    unsigned index;                  /* index in clients[]; selects two bits of gate_closed */
    char name[89];                   /* NVSHARE_NAME, truncated to a record's length; "": unset */
    char gang[89];                   /* NVSHARE_GANG, likewise truncated; "": unset */
    struct nvshare_terms terms;      /* of the environment, see service/terms.h */

    /* Everything from here on is protected by memory_lock. */

    struct nvshare_memory memory;    /* figures that the library reports to the daemon */
    struct nvshare_limits limits;
    bool reported;                   /* the daemon knows the current `memory` */

    /* True from RUN to STOP; while false, GATE_STOPPED(client) is set. */
    bool running;
    uint64_t turns;                  /* number of turns that have begun, plus one */
    uint64_t opened;                 /* us: when the last turn began */
    uint64_t idled;                  /* us of this turn in which no work was in flight */
    _Atomic bool stopping;           /* from STOP until STOPPED, which reports waiting threads */
    bool paced;                      /* other clients wait: bound this client's work in flight */
    bool squeezed;                   /* other clients may wait for memory: keep no freed memory */
    bool steps;                      /* RUN had STEP: let launches through one at a time */
    uint64_t step_pause;             /* us from the end of one launch to the next */
    bool reports_idle;
    bool reports_busy;
    bool want_sent;
    uint64_t wanted;                 /* us: when a thread last waited for a turn to begin */
    bool prints_waits;               /* the service thread prints why threads wait (waiting.c) */
    bool drained;                    /* no work is in flight: from STOPPED to RUN */
    /* True while `absent` > 0, memory exceeds memory.room, or `remapping`: GATE_STARVED is set. */
    bool starved;
    bool starved_reported;           /* a MEMORY report was sent since `starved` became true */
    bool remapping;                  /* exclusive.c keeps the gate closed to replace memory */
    uint64_t idle_window;            /* us without work before IDLE is sent, at most */

    enum nvshare_pin_reason pin_reason;        /* why the client is never evicted (client.c) */

    uint64_t absent;                 /* bytes in blocks that are not BLOCK_RESIDENT */
    uint64_t uncounted;              /* bytes that memory.host leaves out, and reports add (swap.c) */
    struct block *blocks;            /* all blocks, the oldest first */
    struct block *youngest;

    int socket;                      /* a handle of own_file.h; -1: no daemon is connected */
    uint64_t last_commit;            /* number of the last COMMIT sent */
    /* COMMITs for memory to be pinned, until memory.pinned includes that memory. */
    struct open_commit {
        uint64_t number;             /* 0: the entry is free */
        uint64_t wanted;             /* requested limit of allocated + pinned, in bytes */
        uint64_t pins;               /* bytes by which memory.pinned may grow */
        uint64_t granted;            /* us: when the grant was read; 0: not yet */
    } open_commits[OPEN_COMMITS_MAX];
    bool waits_for_entry;            /* a thread waits for a free entry */
    uint64_t answered_commit;        /* number of the last answered COMMIT */
    struct nvshare_order commit_answer;      /* the last answer to a COMMIT */
    char reason[REASON_LONGEST];     /* text of the last REASON: why a COMMIT was refused */
    bool reason_begun;               /* a part of `reason` has arrived, but not yet its LIMITS */
    char printed_reason[REASON_LONGEST];     /* last reason printed on stderr */
    unsigned introduced;             /* number of HELLOs; each HELLO voids all open COMMITs */
    /* Futex word (driver/bell.h) that changes when a COMMIT is answered, an entry becomes free or
     * the connection changes. No condition variable: a waiting thread may leave by siglongjmp(). */
    _Atomic uint32_t commit_bell;

    /* Only the service thread uses the fields below; context_ends() clears the copy context. */

    pthread_t thread;
    int wakes, wake;                 /* a socket pair that wakes the service thread */
    CUcontext copy_context;          /* context of copy_stream; NULL: not created yet */
    CUstream copy_stream;
    unsigned undrained;              /* number of drains in a row that gave up */
    struct nvshare_order postponed[POSTPONED_MOST];  /* orders put off by a drain, or because a */
    unsigned postponed_count;        /* YIELD may follow them; the oldest first */
    bool speculates;                 /* carries out an EVICT that a YIELD ends */
};

#define GATE_STOPPED(client) ((uint64_t)1 << (2 * (client)->index))
#define GATE_STARVED(client) ((uint64_t)2 << (2 * (client)->index))

/* Protects all bookkeeping of memory and clients. Locked for short sections only: driver calls that
 * map, unmap or query memory, sending one record; never a copy over the bus, or a wait for work or
 * the daemon. Other locks meanwhile: driver/locks.def. */
extern pthread_mutex_t memory_lock;
/* Broadcast when a block stops moving, or an exclusive operation (exclusive.c) has ended. Only the
 * library's threads wait for it: a thread of the program calls memory_wait(), which it may leave. */
extern pthread_cond_t memory_changed;
void memory_notify(void);            /* broadcasts memory_changed, ends memory_wait() */
void memory_wait(void);              /* releases memory_lock, the thread's only lock, meanwhile */

/* Locked by a service thread while it uses contexts, streams or events, and by a program thread
 * that destroys a context. Locked before memory_lock. */
extern pthread_mutex_t service_lock;

extern struct client *clients[CLIENTS_MAX]; /* index: device ordinal; clients are never removed */
#define EACH_CLIENT(client)                                                                \
    for (unsigned index = 0; index < CLIENTS_MAX; index++)                                 \
        for (struct client *client = __atomic_load_n(&clients[index], __ATOMIC_ACQUIRE);   \
             client != NULL; client = NULL)

/* True: wrappers must only call the driver, because the process never had a client, or for
 * client_is_called_back(). */
bool client_none(void);
/* If client_none(), the caller returns `value`; else memory_lock is locked until the scope ends. */
#define LOCKED_OR_RETURN(value)                                                    \
    if (client_none())                                                             \
        return value;                                                              \
    LOCKED(memory_lock)
/* The same for a section that only reads: LOCKED_TO_READ. */
#define READING_OR_RETURN(value)                                                   \
    if (client_none())                                                             \
        return value;                                                              \
    LOCKED_TO_READ(memory_lock)
/* Whether the calling thread runs a callback of a tracing tool (CUPTI) in a driver call that the
 * library makes while it holds a lock. Such a thread must neither wait nor lock what may be locked
 * by it, or by a thread that waits for it. Not to be asked by code of the library under its locks,
 * nor to distinguish callbacks in the library's own threads: there it is always true. */
bool client_is_called_back(void);
bool client_may_lock_memory(void);                 /* also where client_is_called_back() */
void client_thread_is_ours(void);
unsigned clients_count(void);
void client_enter(struct client *client);          /* memory_lock held */
void clients_watch_forks(void);

struct client *client_on(CUdevice device);        /* the device's client, or NULL */
struct client *client_here(void);                 /* the client of the current context's device */
struct client *client_current(void);              /* client_here(); NULL in a tool's callback */

/* Whether a client of this process carries out a STOP: the gate is closed until its drain ends. */
bool clients_stopping(void);

/* Reports that a thread is about to wait at the gate. The caller does not hold memory_lock. */
void clients_want(void);

CUresult device_uuid(CUdevice device, CUuuid *uuid);

void client_wake(struct client *client);          /* wakes the client's service thread */
/* Creates or replaces the socket pair client->wakes and client->wake. False: out of descriptors. */
bool client_make_wake(struct client *client);
/* Waits for a wake-up, an order or `timeout_us` (NEVER: no limit). Returns the connection if it is
 * readable or has ended, else -1. Takes no lock: only the calling thread changes client->socket. */
int client_wait(struct client *client, int64_t timeout_us);
/* Appends an order to client->postponed. False: there is no space. */
bool client_postpone(struct client *client, const struct nvshare_order *order);
bool client_next_postponed(struct client *client, struct nvshare_order *order);
/* True: the next order, postponed or just arrived, is of this type, and is now in *order. */
bool client_next(struct client *client, unsigned type, struct nvshare_order *order);
/* Whether a YIELD has arrived, which is taken. Orders before it that came without a descriptor are
 * postponed. */
bool client_take_yield(struct client *client);
/* Whether a LOAD has arrived. Orders before it are postponed, too, as above. */
bool client_load_follows(struct client *client);
/* Whether a YIELD has arrived that ends the EVICT that this thread carries out. */
bool client_must_yield(struct client *client);
uint64_t now_microseconds(void);                  /* CLOCK_MONOTONIC */
uint64_t processor_microseconds(void);            /* processor time of all threads so far */
#define NEVER INT64_MAX                           /* a time in us: nothing is due */

/* The following functions are called with memory_lock held. */

/* Called after any change of `memory` or `limits`: recomputes `starved`, opens or closes the gate,
 * and reports at once if a running client has become starved. */
void client_update(struct client *client);
void client_changed(struct client *client);       /* the service thread will soon report `memory` */
uint64_t client_need(const struct client *client);
bool client_is_whole(const struct client *client); /* all memory is resident, within memory.room */
uint64_t client_free_room(const struct client *client); /* bytes that may be mapped now */
bool client_may_keep_freed(const struct client *client);
/* Memory that the program has freed but the library keeps, for reuse or until work that uses it has
 * ended, is released before any request is refused for want of memory. */

#define RECLAIM_ALL UINT64_MAX

/* Releases at least `bytes` of one kind of that memory, or all. `until` 0: only memory outside of
 * pools that no work uses. Else `until` is a deadline in us: also waits for work, with memory_lock
 * released, and releases memory that pools keep below their thresholds. False: nothing released. */
typedef bool reclaimer(struct client *client, uint64_t bytes, uint64_t until);
/* Called before the first client exists. `all`: the list of reclaimers, ended by NULL. */
void reclaim_from(reclaimer *const *all);
bool reclaim(struct client *client, uint64_t bytes, uint64_t until);

/* Sends the report with the client's figures. On failure the service thread reconnects. */
void client_send(struct client *client, struct nvshare_report report);
/* Sets *report to one that must precede the next, or returns false. memory_lock is held. */
typedef bool preceding_report(struct client *client, struct nvshare_report *report);
/* Called before the first client exists. `all` is ended by NULL. */
void client_reports_begin_with(preceding_report *const *all);
/* As client_send(), but returns the report instead of sending it. */
struct nvshare_report client_report(const struct client *client, struct nvshare_report report);
/* Sends NAME, GANG, `stored` if the client's file has bytes, and `hello`. False: a send failed. */
bool client_introduce(const struct client *client, int socket, const struct nvshare_report *stored,
                      const struct nvshare_report *hello);

/* Pins the client and prints the reason; later reasons are ignored. memory_lock is not held.
 * Swapped memory is loaded before the gate opens: inside the gate, all memory is resident. */
void client_pin(struct client *client, enum nvshare_pin_reason reason);

/* Pins all present and later clients of this process. clients_pin_reason(): why, or PIN_NONE. */
void clients_pin(enum nvshare_pin_reason reason);
enum nvshare_pin_reason clients_pin_reason(void);

/* Registers at_exit() of client.c; called right before cuInit. */
void process_end_watch(void);

/* The connection to the daemon is a handle of own_file.h. These functions take no lock. */

int connection_open(void);             /* a handle; or -1 and errno */
bool connection_send(int connection, const struct nvshare_report *report);
/* The next connection speaks the other version of the protocol: one has ended before its first order,
 * as an earlier daemon ends a connection whose version it does not know. */
void connection_try_other_version(void);
/* Returns 1: an order has come; 0: no order within `timeout_ms`; -1: the connection has ended.
 * *descriptor: a handle of the file descriptor sent along, or -1; `descriptor` NULL: closes it. */
int connection_receive(int connection, struct nvshare_order *order, int *descriptor,
                       int timeout_ms);
/* True: the next order has arrived; *order is a copy. */
bool connection_peek(int connection, struct nvshare_order *order);
/* True: the next order has arrived, is of this type, and is now in *order. */
bool connection_next(int connection, unsigned type, struct nvshare_order *order);

/* The daemon's grants to a client. Called with memory_lock held, unless stated otherwise. */

/* Waits, memory_lock released, until client_need() may grow by `size` bytes. False: refused. */
bool client_commit(struct client *client, uint64_t size);
/* As client_commit(), for memory of which `pins` bytes will be pinned. The daemon counts `pins` as
 * pinned until this thread calls client_settle(): when memory.pinned includes `pins`, or nothing
 * will be pinned. `until`: deadline in us for reclaim(). */
bool client_commit_pinned(struct client *client, uint64_t size, uint64_t pins, uint64_t until);
uint64_t client_patience_ends(void);
void client_settle(void);
/* Carries out LIMITS, which may answer a COMMIT. The caller does not hold memory_lock. */
void client_set_limits(struct client *client, const struct nvshare_order *order);
/* Records the answer to a COMMIT; NULL: a HELLO voids it. Voids earlier ungranted COMMITs. */
void client_commit_answered(struct client *client, uint64_t number,
                            const struct nvshare_order *answer);
/* Makes threads ask again: a daemon that is sent HELLO knows of no COMMIT. memory_lock is held. */
void client_void_commits(struct client *client);
/* Appends the text of a REASON to client->reason. */
void client_append_refusal(struct client *client, const char *text, size_t size);
uint64_t client_to_pin(const struct client *client);    /* bytes: `to_pin` of a report */
/* Gives up grants unused for a minute. Returns the us until the next grant expires, or NEVER. */
int64_t client_expire_grants(struct client *client);
/* Waits until memory.beyond may grow by `bytes`, and increases it. False: refused. */
bool client_go_beyond(struct client *client, uint64_t bytes);
