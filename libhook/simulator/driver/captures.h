/* SPDX-License-Identifier: Apache-2.0 */
/* The captures in progress, and the calls that they forbid: a call that might wait for captured
 * work fails and invalidates captures, which depends on the mode of the calling thread and of
 * each capture. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "nvshare/cuda_types.h"

struct capture {
    struct capture *next;
    unsigned long long id;
    struct stream *origin;
    CUstreamCaptureMode mode;
    const void *thread;              /* the address of capture_thread_mode in the thread that
                                        began the capture */
    bool broken, to_graph;           /* invalidated; captures into an existing graph of the
                                        program */
    struct graph *graph;
    size_t first;                    /* nodes of the graph from this index on were captured */
};

struct captures {
    struct capture *list;            /* protected by engine_lock */
    _Atomic int count;
    unsigned long long made;
};

extern struct captures captures;
extern __thread CUstreamCaptureMode capture_thread_mode;

/* Called before a driver call that captures may forbid. If a capture forbids the call, invalidates
 * the capture and returns the error. */
CUresult capture_prohibits(void);

/* engine_lock is held. NULL: the capture has ended. */
struct capture *capture_numbered(unsigned long long id);
