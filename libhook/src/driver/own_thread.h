/* SPDX-License-Identifier: Apache-2.0 */
/* The library's threads: they receive no signals of the program, and do not inherit the scheduling
 * and processors of the thread that starts them. */
#pragma once

#include <pthread.h>

/* Returns 0 or an error number, as pthread_create(). */
int own_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);
/* The first function that such a thread calls. `name`: at most 15 characters. */
void own_thread_begins(const char *name);
void own_threads_note_processors(void);            /* called before main() */
