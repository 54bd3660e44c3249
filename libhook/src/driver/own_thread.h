/* SPDX-License-Identifier: Apache-2.0 */
/* The library's threads receive no signals, and inherit no scheduling policy or CPU affinity. */
#pragma once

#include <pthread.h>

int own_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);
/* Called first by each of the library's threads. `name`: at most 15 characters. */
void own_thread_begins(const char *name);
void own_threads_note_processors(void);            /* called before main() */
