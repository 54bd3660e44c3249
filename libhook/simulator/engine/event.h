/* SPDX-License-Identifier: Apache-2.0 */
/* Events: handles for positions in streams. */
#pragma once

#include "engine/stream.h"

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

/* The caller of these functions holds engine_lock. */
void event_hold(struct event *event);
void event_drop(struct event *event);
void event_set(struct event *event, struct stream *stream, uint64_t number);
bool event_reached(const struct event *event);
