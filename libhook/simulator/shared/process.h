/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether another process still exists. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The inode of this process's pid namespace. */
uint64_t process_namespace(void);

/* Start time of the process in clock ticks since boot; 0: no such process. */
uint64_t process_start_time(pid_t pid);

/* Whether the process with this pid and start time still holds its memory. A killed process that
 * its parent has not waited for holds none. */
bool process_lives(pid_t pid, uint64_t started);
