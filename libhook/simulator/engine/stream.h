/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, positions in streams, and events, which are handles of positions. queue.c has the
 * operations of streams. */
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
    struct stream *next;             /* list of the context's streams */
    unsigned references;             /* of the handle, of positions, and of the stream's thread */
    unsigned flags;
    int priority;
    unsigned long long id;
    bool destroyed;                  /* the handle is no longer valid */
    bool has_thread, per_thread;
    pthread_cond_t work;
    struct operation *first, *last;  /* the first one is running */
    uint64_t submitted, completed;   /* numbers of operations */
    struct capture *capture;         /* the capture that the stream is part of; NULL: none */
    struct node **capture_ends;      /* nodes on which the next captured node depends */
    size_t capture_end_count;
};

struct event {
    struct context *context;
    unsigned references;             /* of the handle and of operations */
    unsigned flags;
    struct position last;            /* position of the last recording; no stream: never recorded */
    _Atomic uint64_t time;           /* ns; when the position was reached */
    unsigned long long capture_id;   /* the capture in which it was last recorded; 0: none */
    struct node **nodes;             /* nodes of that capture */
    size_t node_count;
};

struct stream *stream_make(struct context *context, unsigned flags, int priority);

/* engine_lock is held for all functions below. */
void stream_hold(struct stream *stream);
void stream_drop(struct stream *stream);
void stream_close(struct stream *stream);    /* invalidates the handle; queued work goes on */

/* Add unreached positions to a list: the given position; the stream's end; the positions for which
 * an operation in `stream` waits by the rules of the NULL stream. */
void stream_add(struct position **list, size_t *count, struct position position);
void stream_add_position(struct position **list, size_t *count, struct stream *stream);
void stream_add_implicit(struct stream *stream, struct position **list, size_t *count);

bool stream_reached(const struct position *position);

/* The ends of all streams of the context and its green contexts. The caller frees the list by
 * positions_drop(). */
struct position *context_positions(struct context *context, size_t *count);
void positions_drop(struct position *positions, size_t count);

void event_hold(struct event *event);
void event_drop(struct event *event);
void event_set_captured(struct event *event, unsigned long long capture_id,
                        struct node *const *nodes, size_t count);
void event_set(struct event *event, struct stream *stream, uint64_t number);
bool event_reached(const struct event *event);
