/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client: this process on one GPU. Shared by the files that make up the
 * library's core; the wrappers see only client.h and memory.h.
 */
#ifndef NVSHARE_CLIENT_STATE_H
#define NVSHARE_CLIENT_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "interpose/driver.h"
#include "memory/spare.h"
#include "nvshare/protocol.h"
#include "service/caches.h"

#define CLIENTS_MAX 31                /* two bits each in the gate's word, and GATE_PACED */
#define CONTEXTS_MAX 16
#define SLAB_CLASSES 48
#define QUESTIONS_OPEN 16
#define COPIES_IN_FLIGHT 4
#define DRAIN_PATIENCE_US 2000000

struct block;
struct slab;
struct host_slab;

struct client {
    CUdevice device;
    uint8_t uuid[16];
    unsigned index;                  /* in clients[], and of its two bits in gate_closed */

    /* Everything from here on is protected by memory_lock. */

    struct nvshare_memory memory;    /* as told to the daemon with each record */
    struct nvshare_limits limits;
    bool reported;                   /* the daemon knows `memory` as it is */

    /* The daemon lets it run (RUN came, STOP did not). The gate's bit
     * GATE_STOPPED(client) is the opposite. */
    bool granted;
    uint64_t turns;                  /* one more than how often that has begun */
    bool stopping;                   /* STOP came, STOPPED is not sent: it will carry WANTS */
    bool contended;                  /* others wait */
    bool coveted;                    /* they may come for its memory, so it is to say when it is idle */
    bool want_sent;
    /* Nothing is in flight: true from STOPPED to RUN. */
    bool drained;
    /* Other devices that may reach this one's memory: for how many pairs of
     * contexts the program has said so. */
    unsigned readers[CLIENTS_MAX];
    /* Something is absent or the room is too small: GATE_STARVED(client) is set. */
    bool starved;
    bool room_asked;
    bool remapping;                  /* the gate is shut for a moment, by pin_in_place.c */
    uint64_t idle_window;            /* us without a submission before IDLE is sent */
    struct caches caches;

    uint64_t absent;                 /* bytes in blocks that are not BLOCK_RESIDENT */
    uint64_t slab_use;               /* bytes in blocks that may need a place in a slab */
    uint64_t managed_away;           /* of managed memory that count in memory.host */
    uint64_t beyond;                 /* bytes beyond the card, on the host for good */
    struct spares spares;
    struct block *blocks;            /* all, oldest first */
    struct block *youngest;
    struct slab *slabs[SLAB_CLASSES];/* those with a free place */
    struct host_slab *host_slabs;
    int node;                        /* of the host, near this device; -1: any */
    unsigned providers;              /* threads that are making host slabs now */

    int socket;                      /* -1: no daemon now */
    uint64_t question;               /* number of the last COMMIT asked */
    /* commit.c. Those of threads that have asked to pin something and not begun to; and
     * whether one waits for a place there. */
    struct open_question {
        uint64_t number;             /* 0: the place is free */
        uint64_t wanted;             /* what was asked for in all, */
        uint64_t pins;               /* and to be pinned */
        uint64_t granted;            /* when that was heard; 0: not yet */
    } open[QUESTIONS_OPEN];
    bool crowded;
    uint64_t answered;               /* and of the last answered */
    struct nvshare_limits answer;    /* what it was answered with */
    unsigned introduced;             /* counts HELLOs; questions from before one are lost */
    /* A bell: any of these has changed, or the socket. Asking waits on it
     * instead of memory_changed, since it may take long: see bell.h. */
    _Atomic uint32_t heard;

    /* Contexts of this device; the first is where the service works. */
    CUcontext contexts[CONTEXTS_MAX];
    unsigned context_count;
    unsigned contexts_ended;         /* counts; events made before are gone with theirs */

    /* Below: the service thread alone, except as memory_context_ends() says. */

    pthread_t thread;
    int wake;                        /* eventfd: something to do besides the socket */
    CUcontext copy_context;          /* where stream and events were made; NULL: not yet */
    CUstream copy_stream;
    CUevent copied[COPIES_IN_FLIGHT];
    struct examiner {                /* content.c, in the same context */
        bool settled, usable;        /* whether is known, and whether */
        CUmodule module;
        CUfunction kernel;
        CUstream stream;
        CUdeviceptr table;           /* what is to be looked at, and what was found */
    } examiner;
    uint64_t drain_patience;         /* us; grows while drains do not end */
    struct nvshare_record postponed; /* an order that was read before its time; type 0: none */
};

#define GATE_STOPPED(client) ((uint64_t)1 << (2 * (client)->index))
#define GATE_STARVED(client) ((uint64_t)2 << (2 * (client)->index))

/*
 * memory_lock protects all bookkeeping of memory and clients in the process.
 * Held for short sections: driver calls that only map, unmap or ask, and the
 * sending of one record, but never a copy over the bus, a wait for the
 * program's work or for the daemon. Nothing else is locked by its holder but the gate's lock and the
 * capture lock.
 */
extern pthread_mutex_t memory_lock;
/* Broadcast when a block stops moving, and when somebody is done with what only
 * one thread may do at a time. */
extern pthread_cond_t memory_changed;

/*
 * service_lock is held by a service thread while it uses contexts, streams or
 * events, and by a program thread that takes a context away from it. Taken
 * before memory_lock.
 */
extern pthread_mutex_t service_lock;

extern struct client *clients[CLIENTS_MAX];       /* by device ordinal; never removed */

/* client_none() and client_forked() are in client.h. Attaching: */
void client_enter(struct client *client);
void client_withdraw(const struct client *client); /* it was for nothing, and nothing was allocated */
void clients_abandon(void);                       /* in a forked child */

struct client *client_current(void);              /* of the current context's device, or NULL */

/* The following with memory_lock held. */

/* Recomputes `starved`, opens or closes the gate accordingly and asks for
 * room once. To be called after any change of the figures. */
void client_update(struct client *client);
void client_changed(struct client *client);       /* of the figures, only that the daemon hears of them */
uint64_t client_need(const struct client *client);
uint64_t client_free_room(const struct client *client); /* bytes that may be mapped now */
/* commit.c. Waits, releasing the lock meanwhile, until allocated + pinned + pending
 * may grow by `bytes`. False: refused. */
bool client_commit(struct client *client, uint64_t bytes);
/* The same if then `pins` more bytes will be pinned, which count as that for the daemon
 * until this thread calls client_settle(): as soon as the figures say so, or never will. */
bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins);
void client_settle(void);
/* The answer to this question has come, or none will: NULL. Those before it are void. */
void client_hears(struct client *client, uint64_t number, const struct nvshare_limits *answer);
uint64_t client_to_pin(const struct client *client);    /* as the record says it */
/* Gives up what was granted to threads that have gone elsewhere. Returns how many milliseconds
 * are left until there is more of that; -1: nothing is granted. */
int client_give_up(struct client *client);
/* The same of what the client has beyond the card: true if it may have `bytes`
 * more of that, which then count. */
bool client_go_beyond(struct client *client, uint64_t bytes);
/* pool.c: the client needs memory more than what is free in pools does. True
 * if any went. Waits for work if need be and `wait` says so, and releases the
 * lock meanwhile. */
bool pools_yield(const struct client *client, bool wait);
/* memory.c: so does what was freed while a capture kept that from being waited for. Waits
 * for it, releasing the lock meanwhile. False: there is none, or a capture still does. */
bool memory_yield(const struct client *client);
/* pinned.c: what was taken in this context goes with it, and counts no longer. */
void pinned_context_ends(CUcontext context);
/* One record with the figures as they are. Failure closes the connection; the
 * service thread reconnects. */
void client_send(struct client *client, unsigned type, unsigned flags, uint64_t number,
                 uint64_t bytes, uint64_t microseconds);
/* The same, of what its answer will be looked for: commit.c. */
void client_question(struct client *client, unsigned type, uint64_t number, uint64_t bytes,
                     uint64_t host);
void client_wake(struct client *client);          /* the service thread has something to do */

/* A thread is about to stand at the gate. memory_lock not held. */
void clients_want(void);

/* The service thread. */
void *service_run(void *client);
uint64_t now_microseconds(void);                  /* monotonic */

/* connection.c: the socket, without any client's state. -1 and errno. */
int connection_open(void);
bool connection_send(int socket, const struct nvshare_record *record);
/* 1: a record, 0: nothing there now, -1: the connection is at its end. */
int connection_receive(int socket, struct nvshare_record *record, int timeout_ms);
/* The next record if it is there already and of this type. */
bool connection_next(int socket, unsigned type, struct nvshare_record *record);

/* swap.c: carries out an EVICT; `*flags` gets what went wrong. Service thread,
 * service_lock held, memory_lock not. Returns bytes moved. */
uint64_t swap_out(struct client *client, const struct nvshare_record *order, unsigned *flags);
/* presave.c: the same with a SAVE. Returns bytes that could leave without a copy now. */
uint64_t swap_presave(struct client *client, const struct nvshare_record *order, unsigned *flags);
/* load.c: the same with this LOAD and those that arrive meanwhile, answered too. */
void swap_in(struct client *client, const struct nvshare_record *order);
/* orders.c: this order, which is being carried out, is to end now (YIELD). */
bool service_yields(struct client *client, const struct nvshare_record *order);
/* pipeline.c. Something the service made lives in `context`, which is about to go; nothing is
 * in flight there if it is `drained`. With memory_lock, which it may release and retake. */
void swap_leave_context(struct client *client, CUcontext context, bool drained);
bool swap_enter_context(struct client *client);   /* makes it current, with stream and events */

/* drain.c. All of it on the service thread with service_lock held, except
 * drain_context(). */

/* With the gate closed, waits until nothing is in flight in any context of
 * the process. False: gave up, because threads stand at the gate and
 * `patience` microseconds have passed; or, unless it `outlasts` captures, one goes on. */
bool drain_all(uint64_t patience, bool outlasts);

/* The same in steps, to find out whether a client is idle. */
struct drain {
    unsigned contexts_ended;         /* of all clients, at the beginning */
    unsigned count;
    struct drain_part {
        CUcontext context;
        CUevent event;
        bool started;
    } part[CLIENTS_MAX * CONTEXTS_MAX];
};
void drain_begin(struct drain *drain);
bool drain_step(struct drain *drain);              /* true: everything submitted before it began is done */
void drain_abandon(struct drain *drain);

/* Waits for all work of one context; any thread. False: a capture is going on
 * and forbids it. */
bool drain_context(CUcontext context, CUresult *result);
/* Of one that is about to be destroyed. False: a capture in it forbids that, or it has failed. */
bool drain_ending(CUcontext context);

#endif
