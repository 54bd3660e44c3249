/* SPDX-License-Identifier: Apache-2.0 */
/* Each driver function that the program may have obtained has a stub, which jumps to it. While the
 * process is parked (service/park.c) threads that call the driver wait in the stubs: during a
 * checkpoint calls may fail or crash (driver 580 on an H100). Therefore the program gets only
 * addresses of wrappers and stubs, and real_functions[] holds stubs while the process is parked.
 * Functions of private tables (cuGetExportTable) have no stubs, as the CUDA runtime verifies their
 * addresses; the runtime calls them only before public functions, which have stubs. */
#pragma once

#define STUBS 2048

#ifndef __ASSEMBLER__
#include <stdatomic.h>
#include <stdbool.h>

/* Returns the stub of a driver function, and any other address unchanged. */
void *stub_of(void *entry);

/* Records that the program may have obtained an address inside the driver that is no stub. */
void stubs_miss(void);

/* Closes all stubs. The first thread that then calls the driver calls `called`. False: some calls
 * would bypass the stubs. Threads that passed a stub before may still be in the driver. */
bool stubs_close(void (*called)(void));
void stubs_open(void);
/* Makes each driver call return CUDA_ERROR_OPERATING_SYSTEM from now on, except the two functions
 * that describe an error. For a process that the driver cannot restore. Called while closed. */
void stubs_lose(void);
bool stubs_called(void);             /* the driver was called since stubs_close() */
void stubs_await(void);              /* returns when the stubs are open or lost */

/* For stub_code.S: the address to which each stub jumps. stub_wait() returns the function to call;
 * NULL, in a forked child: the call fails. */
extern _Atomic(void *) stub_targets[STUBS];
void *stub_wait(unsigned index);
#endif
