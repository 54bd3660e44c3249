/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops all threads of a process but one, from outside and without ptrace.
 *
 * Below the process's own control group (version 2) it creates two threaded groups:
 * nvshare-PID-TAG, and in it `stopped`, which is frozen. Groups outlive this program, so threads
 * stay stopped if this program or the daemon is killed. Only SIGKILL wakes them, and the parent of
 * the process is not notified, unlike after SIGSTOP. The name of the first group is the only record
 * of the process. The caller's tag in that name tells a later daemon the facts that it needs of the
 * process.
 *
 * The spared thread restores the process, so it must be able to take each lock that it needs.
 * Therefore a thread is stopped only where it holds no lock of the driver or of malloc: in a system
 * call that waits, or outside of libcuda, libc and other allocators. Elsewhere the thread runs on
 * for a moment, before the next attempt to stop it.
 *
 * Functions return NULL, or the reason of a failure.
 */
#pragma once
#include <stdbool.h>

/* Whether the process is in a group nvshare-PID-TAG. */
bool freezer_contains(int pid);
/* Moves the process to the group nvshare-PID-TAG, in which its threads still run. */
const char *freezer_enter(int pid, const char *tag);
/* Stops all threads but the thread `spared`; returns when they are stopped. */
const char *freezer_stop(int pid, int spared);
/* Moves the threads back to the process's former group, where they run. */
const char *freezer_release(int pid);
/* Calls `found` for each process in a group nvshare-PID-TAG. Removes groups of ended processes. */
const char *freezer_list(void (*found)(int pid, const char *tag));
