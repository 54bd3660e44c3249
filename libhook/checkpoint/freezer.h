/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops all threads of a process but one, from outside and without ptrace.
 *
 * Two groups of version 2 are made below the process's own, both threaded: nvshare-PID-TAG, and in it
 * `stopped`, which is frozen. Groups outlive this program: threads stay stopped whatever is killed,
 * no signal but SIGKILL wakes them, and no parent is told as by SIGSTOP. The name of the first is the
 * only record of the process; the tag is the caller's, to find the process again.
 *
 * The thread that goes on must get each lock that it needs. So a thread is stopped only where it holds
 * none of the driver's or of malloc: asleep in a system call that waits, or outside of libcuda, of
 * libc and of other allocators. Else it goes on for a moment, and is stopped again.
 *
 * Functions return NULL, or words why not.
 */
#pragma once
#include <stdbool.h>

bool freezer_has(int pid);                      /* the process is in such a group */
const char *freezer_take(int pid, const char *tag);     /* puts it there; nothing stops yet */
const char *freezer_stop(int pid, int spared);  /* returns when all threads but this one have stopped */
const char *freezer_release(int pid);           /* they go on, in the group of before */
/* Calls `found` for each process in such a group, and removes groups of processes that have ended. */
const char *freezer_list(void (*found)(int pid, const char *tag));
