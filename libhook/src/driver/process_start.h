/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the process when the library was loaded. Later the program may close its stderr and
 * get its number for a data file, or bind its threads to processors.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Whether file descriptor 2 is the original stderr, or a pipe to which the program has redirected
 * it; *mode is then that file's. */
bool process_has_stderr(mode_t *mode);

/* Lets the calling thread run on each processor that the process was started on, with default
 * scheduling. */
void process_reset_thread(void);
