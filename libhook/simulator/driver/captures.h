/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The captures that go on, and what they prohibit. Calls that are unsafe
 * meanwhile, those that might wait for captured work, fail and break the
 * captures they are unsafe for. Which those are depends on the mode of the
 * thread that calls and on the mode of each capture.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "nvshare/cuda_types.h"

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

/* What a call that is unsafe during captures gets, in the calling thread's
 * mode: success, or an error, and then the captures in question are broken. */
CUresult capture_prohibits(void);

/* With the engine's lock held; NULL and false: it has ended. */
struct capture *capture_numbered(unsigned long long id);
bool capture_break(unsigned long long id);
