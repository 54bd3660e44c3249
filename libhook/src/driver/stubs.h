/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each driver function that the program may have obtained has a stub, which jumps to the function.
 * While the process is parked (daemon/park.c) all stubs are closed: a thread that calls the driver
 * waits in the stub.
 *
 * While a process is checkpointed, the driver itself delays only calls that change the driver's
 * state; other calls of the process fail or crash (driver 580 on an H100). Therefore dlsym()
 * (lookup.c), cuGetProcAddress (api/procaddress.c) and the loader (rebind.c) give the program only
 * addresses of wrappers and stubs, never addresses within the driver. The library's own calls,
 * which read their addresses from real_functions[], pass through the stubs while these are closed.
 *
 * Functions of the driver's private tables (cuGetExportTable) have no stubs: the CUDA runtime
 * verifies the tables' addresses. The runtime calls them before public functions, which have stubs.
 */
#pragma once

#define STUBS 2048

#ifndef __ASSEMBLER__
#include <stdatomic.h>
#include <stdbool.h>

/* Returns the stub of a driver function; any other address is returned unchanged. */
void *stub_of(void *entry);

/* Records that the program may have an address within the driver, so that stubs cannot stop it. */
void stubs_miss(void);

/* Closes all stubs: a thread that then calls the driver waits in the stub, and the first such
 * thread calls `called` before. False: some calls would bypass the stubs. Threads that passed a
 * stub before may still be in the driver. */
bool stubs_close(void (*called)(void));
void stubs_open(void);
bool stubs_called(void);             /* a thread has called the driver since stubs_close() */
void stubs_await(void);              /* returns when the stubs are open */

/* For stub_code.S. stub_targets: the address to which each stub jumps. stub_wait() waits and
 * returns the function to call; NULL: the call fails, in a forked child. */
extern _Atomic(void *) stub_targets[STUBS];
void *stub_wait(unsigned index);
#endif
