/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to the driver, whose answers on a real card are recorded in
 * conformance.txt. Each section runs in a process of its own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)

/* Prints the name of what the call returned, with what was called. */
#define ASK(call) ask(#call, call)
void ask(const char *what, CUresult result);
/* The same for a value that any card gives alike. */
void tell(const char *what, long long value);

/* Most sections begin so: the primary context of device 0 is current. */
void begin(void);
extern CUcontext context;
extern CUfunction fill, spin, wait_flag;
CUresult launch_fill(CUdeviceptr address, uint64_t words, CUstream stream);
CUresult launch_spin(uint64_t microseconds, CUstream stream);
CUresult launch_wait(CUdeviceptr flag, uint64_t value, CUstream stream);

CUmemGenericAllocationHandle create_block(size_t size);
CUdeviceptr reserve(size_t size);
CUresult open_access(CUdeviceptr address, size_t size);
CUdeviceptr mapped_block(size_t size, CUmemGenericAllocationHandle *handle);

/* In the order of the recording. */
#define SECTIONS(X) \
    X(before_init) X(no_context) X(contexts) X(addresses) X(mappings) X(fault_kernel) \
    X(fault_access) X(fault_copy) X(fault_copy_async) X(fault_set) X(fault_elsewhere) \
    X(fault_peek) X(pointers) X(host_memory) X(allocations) X(pools) X(events) X(streams) \
    X(callbacks) X(proc_addresses) X(forked) X(at_exit) X(sharing) X(capture_own_global) \
    X(capture_own_thread_local) X(capture_own_relaxed) X(capture_other_global) \
    X(capture_other_thread_local) X(capture_other_relaxed) X(capture_rules) X(capture_context) \
    X(graphs) X(modules) X(waiting) X(ending) X(shapes) X(batches) X(managed_memory) \
    X(settings)
#define SECTION(name) void name(void);
SECTIONS(SECTION)
#undef SECTION
