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

struct section {
    const char *name;
    void (*run)(void);
};
extern const struct section sections[];

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

void addresses(void);
void mappings(void);
void fault_kernel(void);
void fault_access(void);
void fault_copy(void);
void fault_copy_async(void);
void fault_set(void);
void fault_elsewhere(void);
void fault_peek(void);
void pointers(void);
void host_memory(void);
void allocations(void);
void pools(void);
void contexts(void);
void no_context(void);
void before_init(void);
void events(void);
void streams(void);
void callbacks(void);
void proc_addresses(void);
void forked(void);
void at_exit(void);
void sharing(void);
void capture_own_global(void);
void capture_own_thread_local(void);
void capture_own_relaxed(void);
void capture_other_global(void);
void capture_other_thread_local(void);
void capture_other_relaxed(void);
void capture_rules(void);
void capture_context(void);
void graphs(void);
void waiting(void);
void ending(void);
void shapes(void);
void batches(void);
void managed_memory(void);
void settings(void);
void modules(void);
