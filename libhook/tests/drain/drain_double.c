/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that drain.c, capture.c and contexts.c call: a driver that never ends its work and
 * counts the events of each context. A context's handle is its number.
 */
#include "gate/contexts.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/gate.h"
#include "driver/real.h"

#define CONTEXTS 8

SEEN int events[CONTEXTS];           /* number of events in each context */
static uintptr_t current;
static struct drain drain;

static CUresult push(CUcontext context)
{
    current = (uintptr_t)context;
    return CUDA_SUCCESS;
}

static CUresult create(CUevent *event, unsigned flags)
{
    *event = (CUevent)(void *)&events[current];
    events[current]++;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    --*(int *)(void *)event;
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event) { return CUDA_ERROR_NOT_READY; }
static CUresult succeed(void) { return CUDA_SUCCESS; }

void *real_find(enum real_index index)
{
    switch (index) {
    case REAL_cuCtxPushCurrent_v2:
        return (void *)push;
    case REAL_cuEventCreate:
        return (void *)create;
    case REAL_cuEventDestroy_v2:
        return (void *)destroy;
    case REAL_cuEventQuery:
        return (void *)query;
    default:
        return (void *)succeed;
    }
}

_Atomic uint64_t gate_closed;
static uint64_t clock_us = 1000000;
static bool captures_meanwhile;

bool client_none(void) { return true; }
unsigned clients_count(void) { return 0; }
bool client_is_called_back(void) { return false; }

uint64_t now_microseconds(void)
{
    uint64_t now = clock_us;
    if (captures_meanwhile) {
        captures_meanwhile = false;
        clock_us += 10;
        capture_add(capture_new((CUstream)(uintptr_t)1, true));
    }
    return now;
}

/* The age of the only capture, which another thread begins after this thread read the clock. */
SEEN uint64_t age_of_a_capture_that_begins_meanwhile(void)
{
    captures_meanwhile = true;
    return capture_oldest();
}

static CUcontext named(unsigned number) { return (CUcontext)(uintptr_t)number; }
SEEN void begins(unsigned number) { contexts_add(named(number), 0, named(number)); }

/* The driver destroys the context's events with it. */
SEEN void ends(unsigned number)
{
    contexts_remove(named(number));
    events[number] = 0;
}

SEEN void drain_starts(void)
{
    drain_begin(&drain);
    drain_step(&drain);
}

SEEN void drain_goes_on(void) { drain_step(&drain); }
SEEN void drain_is_over(void) { drain_abandon(&drain); }
