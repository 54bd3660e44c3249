/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, and moments in them. What is in them to be done: queue.c. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver/context.h"

struct capture;
struct node;
struct operation;

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

struct stream *stream_make(struct context *context, unsigned flags, int priority);

/* All below: with the engine's lock held. */
void stream_hold(struct stream *stream);
void stream_drop(struct stream *stream);
void stream_close(struct stream *stream);    /* the handle goes; work goes on */

/* Adds a position to a list, if it is not reached yet; where the stream is now; and
 * what the NULL stream's rules make it wait for. */
void stream_add(struct position **list, size_t *count, struct position position);
void stream_add_position(struct position **list, size_t *count, struct stream *stream);
void stream_add_implicit(struct stream *stream, struct position **list, size_t *count);

bool stream_reached(const struct position *position);

/* Where all the context's streams, and those of its green contexts, are now; the caller frees the list and drops its references. */
struct position *context_positions(struct context *context, size_t *count);
void positions_drop(struct position *positions, size_t count);
