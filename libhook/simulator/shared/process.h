/* SPDX-License-Identifier: Apache-2.0 */
/* Whether another process still lives. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The pid namespace that we live in, as others see it. */
uint64_t process_namespace(void);

/* When the process was started, in clock ticks since boot; 0 if there is none. */
uint64_t process_start_time(pid_t pid);

/* The process with this pid that started then still holds its memory. A
 * process that was killed and not yet waited for holds none. */
bool process_lives(pid_t pid, uint64_t started);
