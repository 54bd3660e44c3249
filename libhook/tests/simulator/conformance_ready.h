/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "conformance.h"

/* What is ready before any capture, for calls to be about. */
struct ready {
    CUstream stream, blocking, side, created;
    CUevent recorded, event, made, never;
    CUdeviceptr memory, mapped, reserved, fresh, spare_memory;
    CUmemGenericAllocationHandle handle, spare;
    void *host, *pinned, *spare_pinned, *registered;
    CUcontext context;
    CUmodule module;
    CUgraph graph;
    CUgraphExec exec;
    CUmemAllocationProp properties;
    size_t a, b;
    float ms;
    uint64_t word;
};
extern struct ready it;

void prepare(void);                  /* fills it */
void nothing(void *data);            /* a host function */
