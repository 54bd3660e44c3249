/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the process was started with, noted as the library is loaded. Later the program may close
 * its stderr and have the number for a file of data, or bind its threads to processors.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Whether file descriptor 2 is what it was at the start, or a pipe that the program redirected it
 * to; then *mode is that file's. */
bool process_has_stderr(mode_t *mode);

/* Lets the calling thread run on each processor that the process was started on, in the default
 * way. */
void process_reset_thread(void);
