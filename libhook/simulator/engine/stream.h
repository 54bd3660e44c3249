/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, and the order in which work is done. See the essay in stream.c. */
#ifndef NVSHARE_SIMULATOR_STREAM_H
#define NVSHARE_SIMULATOR_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/work.h"

struct stream;
struct capture;

struct operation {
    struct operation *next;
    uint64_t number;
    struct position *after;          /* waits for these first */
    size_t after_count;
    _Atomic bool doomed;             /* memory under it was unmapped: it faults */
    size_t count;
    struct work works[];
};

struct stream {
    struct context *context;
    struct stream *next;             /* of the context's streams */
    unsigned references;             /* the handle, positions, and the thread at work */
    unsigned flags;
    int priority;
    unsigned long long id;
    bool destroyed;                  /* the handle is gone */
    bool has_thread, per_thread;
    pthread_cond_t work;
    struct operation *first, *last;  /* the first is being carried out */
    uint64_t submitted, completed;   /* numbers of operations */
    struct capture *capture;         /* it is being captured */
    struct node **capture_ends;      /* the capture's nodes that the next one depends on */
    size_t capture_end_count;
};

/* Protects every stream, event, capture and graph of the process. Behind it
 * only the space's lock, a stream table's and the shared state's are taken. */
extern pthread_mutex_t engine_lock;

struct stream *stream_make(struct context *context, unsigned flags, int priority);
/* The stream that a handle means to the calling thread in `context`. */
CUresult stream_from(CUstream handle, struct context *context, struct stream **stream);

/* All below: with the engine's lock held. */
void stream_hold(struct stream *stream);
void stream_drop(struct stream *stream);
void stream_close(struct stream *stream);    /* the handle goes; work goes on */

/* Queues works, copied, behind `after`, copied, and behind all that a stream of
 * this kind waits for anyway. Never waits. Returns the operation's number. */
uint64_t stream_queue(struct stream *stream, const struct work *works, size_t count,
                      const struct position *after, size_t after_count);

/* Captures the work if the stream is being captured, else queues it. */
CUresult stream_submit(struct stream *stream, const struct work *work);

/* Adds where the stream is now to a list, if it is not there yet; and what the
 * NULL stream's rules make it wait for. */
void stream_add_position(struct position **list, size_t *count, struct stream *stream);
void stream_add_implicit(struct stream *stream, struct position **list, size_t *count);

bool stream_reached(const struct position *position);
/* Waits, giving the lock up meanwhile; returns the context's error, if any. */
CUresult stream_wait(struct stream *stream, uint64_t number);
CUresult context_wait(struct context *context);
/* Where all the context's streams are now; the caller frees the list and drops its references. */
struct position *context_positions(struct context *context, size_t *count);
void positions_drop(struct position *positions, size_t count);

/* Work in flight that touches these bytes shall fault. */
void streams_doom(CUdeviceptr base, size_t size);

#endif
