/* SPDX-License-Identifier: Apache-2.0 */
/* The library's threads: no signal of the program's reaches them, and how the program schedules
 * the thread that starts them does not matter. */
#pragma once

#include <pthread.h>

/* 0 or an error number, as pthread_create(). */
int own_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);
/* The first that such a thread calls. `name`: of 15 characters at most. */
void own_thread_begins(const char *name);
