/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub for each function of the driver that the program has: a jump to where it is. While the
 * process is parked (daemon/park.c) all of them are closed: a thread that calls the driver waits before it.
 *
 * The driver alone does not do that. It locks the calls that change something; of a process that is
 * checkpointed others fail or crash (580 on an H100). So programs are never told an address within
 * the driver, but a wrapper or a stub: by dlsym() (lookup.c), cuGetProcAddress (api/procaddress.c),
 * and by the loader (rebind.c). The library's own calls, which take the addresses from
 * real_functions[], go by the stubs while these are closed.
 *
 * Functions of the driver's private tables (cuGetExportTable) have no stubs: the CUDA runtime
 * verifies the tables' addresses. The runtime calls them before public functions, which have stubs.
 */
#pragma once

#define STUBS 2048

#ifndef __ASSEMBLER__
#include <stdatomic.h>
#include <stdbool.h>

/* The stub of a function of the driver. Anything else stays as it is. */
void *stub_of(void *entry);

/* The program has an address within the driver that is no stub's, or may have one. */
void stubs_miss(void);

/* From now on every call waits, and first calls `called`. False: some calls would not. A thread may
 * be on its way into the driver or be within it when this returns. */
bool stubs_close(void (*called)(void));
void stubs_open(void);
bool stubs_called(void);             /* a thread has called since they were closed */
void stubs_await(void);              /* returns when they are open */

/* For stub_code.S: where each jumps to, and the function for a thread to go on to; NULL: the call fails,
 * in a forked child. */
extern _Atomic(void *) stub_targets[STUBS];
void *stub_wait(unsigned index);
#endif
