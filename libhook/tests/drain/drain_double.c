/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What drain.c and contexts.c stand on: a driver whose work never ends and that counts the events
 * of each context. A context is its number.
 */
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "flight/capture.h"
#include "flight/capture_list.h"
#include "flight/drain.h"
#include "flight/streams.h"
#include "driver/log.h"
#include "driver/real.h"

#define SEEN __attribute__((visibility("default")))
#define CONTEXTS 8

SEEN int events[CONTEXTS];           /* that exist in each */
static uintptr_t current;
static struct drain drain;

_Atomic(void *) real_functions[REAL_COUNT];

static CUresult push(CUcontext context)
{
    current = (uintptr_t)context;
    return CUDA_SUCCESS;
}

static CUresult create(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = (CUevent)(void *)&events[current];
    events[current]++;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    --*(int *)(void *)event;
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    (void)event;
    return CUDA_ERROR_NOT_READY;
}

static CUresult succeed(void)
{
    return CUDA_SUCCESS;
}

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

CUresult real_absent(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

uint64_t now_microseconds(void)
{
    return 0;
}

void complain(const char *format, ...)
{
    (void)format;
}

void debug(const char *format, ...)
{
    (void)format;
}

bool capture_forbid(bool whatever)
{
    (void)whatever;
    return true;
}

void capture_allow(void)
{
}

bool capture_alone(void)
{
    return false;
}

bool capture_going_on(void)
{
    return false;
}

uint64_t capture_oldest(void)
{
    return 0;
}

void captures_end_abandoned(void)
{
}

uint64_t streams_moment(void)
{
    return 0;
}

CUresult streams_look(CUcontext context, uint64_t moment)
{
    (void)context, (void)moment;
    return CUDA_SUCCESS;
}

bool gate_empty(void)
{
    return true;
}

bool gate_has_blocked(void)
{
    return false;
}

static CUcontext named(unsigned number)
{
    return (CUcontext)(uintptr_t)number;
}

SEEN void begins(unsigned number)
{
    contexts_add(named(number), 0, named(number));
}

/* The driver destroys its events with it. */
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

SEEN void drain_goes_on(void)
{
    drain_step(&drain);
}

SEEN void drain_is_over(void)
{
    drain_abandon(&drain);
}
