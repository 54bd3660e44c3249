/* SPDX-License-Identifier: Apache-2.0 */
/* What a capture consists of. */
#ifndef NVSHARE_SIMULATOR_CAPTURE_STATE_H
#define NVSHARE_SIMULATOR_CAPTURE_STATE_H

#include "stream/capture.h"

struct capture {
    struct capture *next;
    unsigned long long id;
    struct stream *origin;
    CUstreamCaptureMode mode;
    const void *thread;              /* that began it: the address of its mode */
    bool broken, to_graph;           /* the graph is the program's own */
    struct graph *graph;
    size_t first;                    /* the graph's nodes from here on were captured */
};

struct captures {
    struct capture *list;            /* under the engine's lock */
    _Atomic int count;
    unsigned long long made;
};

extern struct captures captures;
extern __thread CUstreamCaptureMode capture_thread_mode;

/* With the engine's lock held. */
void capture_set_ends(struct stream *stream, struct node *const *nodes, size_t count);
void capture_add_ends(struct stream *stream, struct node *const *nodes, size_t count);
bool capture_blocks(const struct stream *stream);    /* a capture makes the NULL stream unusable */
void capture_finish(struct capture *capture);    /* over, for every stream in it */

#endif
