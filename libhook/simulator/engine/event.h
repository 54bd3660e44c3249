/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a position in a stream that a program has a handle for. */
#pragma once

#include "engine/stream.h"

struct event {
    struct context *context;
    unsigned references;             /* the handle and operations */
    unsigned flags;
    struct position last;            /* where it was recorded; no stream: never */
    _Atomic uint64_t time;           /* nanoseconds, when it was reached */
    unsigned long long capture_id;   /* the capture it was last recorded in, 0: none */
    struct node **nodes;             /* of that capture */
    size_t node_count;
};

/* All with the engine's lock held. */
void event_hold(struct event *event);
void event_drop(struct event *event);
void event_set(struct event *event, struct stream *stream, uint64_t number);
bool event_reached(const struct event *event);
