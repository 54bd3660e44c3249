/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client: this process on one GPU.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/locked.h"
#include "nvshare/protocol.h"

#define CLIENTS_MAX 30                /* two bits each in the gate's word, and GATE_AJAR */
#define QUESTIONS_OPEN 16
#define REASON_LONGEST 448
#define POSTPONED_MOST 16

struct block;
struct host_slab;

struct client {
    CUdevice device;
    uint8_t uuid[16];
    unsigned index;                  /* in clients[], and of its two bits in gate_closed */
    char name[89];                   /* NVSHARE_NAME, as far as a record holds it; "": none */
    char gang[89];                   /* NVSHARE_GANG, in the same way */

    /* Everything from here on is protected by memory_lock. */

    struct nvshare_memory memory;    /* as told to the daemon with each record */
    struct nvshare_limits limits;
    bool reported;                   /* the daemon knows `memory` as it is */

    /* The daemon lets it run (RUN came, STOP did not). The gate's bit
     * GATE_STOPPED(client) is the opposite. */
    bool granted;
    uint64_t turns;                  /* one more than how often that has begun */
    uint64_t opened;                 /* when that began last, us */
    uint64_t idled;                  /* us since then in which nothing was in flight, as far as seen */
    bool stopping;                   /* STOP came, STOPPED is not sent: it will carry WANTS */
    bool paced;                      /* others wait: little work in flight, */
    bool squeezed;                   /* and no spare memory, as they may need the room */
    bool steps;                      /* one launch at a time, each so long after the last */
    uint64_t step_pause;             /* us */
    bool reports_idle;
    bool reports_busy;
    bool want_sent;
    /* Nothing is in flight: true from STOPPED to RUN. */
    bool drained;
    /* Other devices that may reach this one's memory: for how many pairs of
     * contexts the program has said so. */
    unsigned readers[CLIENTS_MAX];
    /* Something is absent or the room is too small: GATE_STARVED(client) is set. */
    bool starved;
    bool lack_reported;              /* the daemon knows that, so that it need not be told at once */
    bool remapping;                  /* the gate is shut for a moment, by pin_in_place.c */
    uint64_t idle_window;            /* us without a submission before IDLE is sent */

    enum nvshare_stays stays;        /* why nothing of it leaves the card any more; client.c */

    uint64_t absent;                 /* bytes in blocks that are not BLOCK_RESIDENT */
    uint64_t slab_use;               /* bytes in blocks that may need a place in a slab */
    uint64_t managed_away;           /* of managed memory that count in memory.host */
    struct block *blocks;            /* all, oldest first */
    struct block *youngest;
    struct host_slab *host_slabs;    /* the latest first */
    struct host_slab *host_room;     /* none before it has any; NULL: none has */
    uint64_t host_slabs_made;
    unsigned host_empty;             /* slabs that hold nothing */
    int node;                        /* of the host, near this device; -1: any */
    unsigned providers;              /* threads that are making host slabs now, */
    unsigned early_providers;        /* and while the program runs; see host_threads.c */
    uint64_t host_most;              /* held by the last order; these keep no slab beyond it, */
    bool provides_early;             /* and begin slabs up to it */

    int socket;                      /* as connection.h has it; -1: no daemon now */
    uint64_t question;               /* number of the last COMMIT */
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
    char reason[REASON_LONGEST];     /* why that was refused, for people; "": no more is known */
    bool reason_begun;               /* a part of it has come, and the answer has not */
    char explained[REASON_LONGEST];  /* what people were told last */
    unsigned introduced;             /* counts HELLOs; questions from before one are lost */
    /* A bell: any of these has changed, or the socket. Asking waits on it
     * instead of memory_changed, since it may take long: see bell.h. */
    _Atomic uint32_t heard;

    /* Below: the service thread alone, except as context_ends() says. */

    pthread_t thread;
    int wakes, wake;                 /* a pair: something to do besides the socket */
    CUcontext own_context;           /* made while the program had none; NULL: there is none */
    CUcontext copy_context;          /* where the stream was made; NULL: not yet */
    CUstream copy_stream;
    unsigned undrained;              /* drains in a row that did not end */
    struct nvshare_order postponed[POSTPONED_MOST];  /* orders that were read before their time, */
    unsigned postponed_count;        /* the oldest first */
};

#define GATE_STOPPED(client) ((uint64_t)1 << (2 * (client)->index))
#define GATE_STARVED(client) ((uint64_t)2 << (2 * (client)->index))

/*
 * memory_lock protects all bookkeeping of memory and clients in the process.
 * Held for short sections: driver calls that only map, unmap or ask, and the
 * sending of one record, but never a copy over the bus, a wait for the
 * program's work or for the daemon. Nothing else is locked by its holder but
 * the gate's lock, the capture lock and that of the list of contexts.
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

/* Wrappers pass through: no client has ever been attached in this process, or the driver has called
 * back in the middle of a call of ours (client_is_called_back()). */
bool client_none(void);
/* A tool that watches the driver's calls (CUPTI) is called back in the middle of each, on the same
 * thread, and may call the driver itself. In the middle of one of ours that thread holds memory_lock,
 * or is the library's: it may neither lock that again, nor wait for an answer of the daemon's or at
 * the gate. */
bool client_is_called_back(void);
void client_thread_is_ours(void);                 /* the calling one, until it ends */
bool client_alone(void);                          /* there is one, and no other */
unsigned clients_count(void);
/* Attaching (daemon/attach.c). */
void client_enter(struct client *client);          /* memory_lock held */
void clients_watch_forks(void);                   /* a child has none; once is enough */

struct client *client_here(void);                 /* of the current context's device, or NULL */
struct client *client_current(void);              /* the same; NULL if client_is_called_back() */

/* A thread is about to stand at the gate. memory_lock not held. */
void clients_want(void);

void client_wake(struct client *client);          /* the service thread has something to do */
/* An order that is to be carried out after all that were postponed before it. False: no room. */
bool client_postpone(struct client *client, const struct nvshare_order *order);
bool client_next_postponed(struct client *client, struct nvshare_order *order);
uint64_t now_microseconds(void);                  /* monotonic */
#define NEVER INT64_MAX                           /* of us until something is due */

/* The following with memory_lock held. */

/* Recomputes `starved`, opens or closes the gate accordingly, and tells the daemon at once
 * when a running client has come to lack something. To be called after any change of the
 * figures. */
void client_update(struct client *client);
void client_changed(struct client *client);       /* of the figures, only that the daemon hears of them */
uint64_t client_need(const struct client *client);
bool client_is_whole(const struct client *client);      /* all of it is on the card, within its room */
uint64_t client_free_room(const struct client *client); /* bytes that may be mapped now */
/* Whether what the program frees may stay mapped, as things stand with the daemon. */
bool client_may_keep_freed(const struct client *client);
/*
 * Memory that the program has freed and that is kept nevertheless: for its next use, or until
 * work has been waited for. Before anything is refused for want of memory it is given back.
 */

#define RECLAIM_ALL UINT64_MAX

/* One of those who keep such memory of a client gives back `bytes`, or all. With `until`, which is a
 * time in us, also what has to be waited for, until then at the latest, or what the program has
 * asked to be kept; the lock may be released meanwhile. 0: neither. False: there is none. */
typedef bool reclaimer(struct client *client, uint64_t bytes, uint64_t until);
/* All who do, in the order in which they are asked; ends with NULL. Before there is a client. */
void reclaim_from(reclaimer *const *all);
/* True: one of them has given some back. */
bool reclaim(struct client *client, uint64_t bytes, uint64_t until);

/* The report, with those. Failure closes the connection; the
 * service thread reconnects. */
void client_send(struct client *client, struct nvshare_report report);

struct client;

/* From now on nothing of this client leaves the card, for this reason. What is away comes in before
 * its gate opens. Says so on stderr. Any thread, without memory_lock; only the first reason
 * counts. What must not be away at all is to be inside the gate when it calls this. */
void client_stay(struct client *client, enum nvshare_stays reason);

/* All clients of this process, and those that it will have. */
void clients_stay(enum nvshare_stays reason);
/* Why this process's clients stay. */
enum nvshare_stays clients_stays(void);

/* Right before a cuInit of the program's. */
void process_end_watch(void);
