/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Library functions that a file under test calls and that are not built with it. Each does nothing
 * and returns a neutral value. They are weak: a double (*_double.c) defines the
 * functions that its test is about.
 */
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "gate/inflight.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "flight/streams.h"
#include "driver/log.h"
#include "driver/real.h"
#include "driver/setting.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define WEAK __attribute__((weak))

WEAK pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
WEAK pthread_mutex_t service_lock = PTHREAD_MUTEX_INITIALIZER;
WEAK _Atomic(void *) real_functions[REAL_COUNT];
WEAK struct client *clients[CLIENTS_MAX];

WEAK void *real_find(enum real_index index) { return NULL; }
WEAK CUresult real_absent(void) { return CUDA_ERROR_NOT_FOUND; }
WEAK unsigned long setting_milliseconds(const char *name, unsigned long usual, unsigned long most)
{
    return usual;
}
WEAK void debug(const char *format, ...) {}
WEAK const char *error_text(int error_number) { return ""; }
WEAK uint64_t processor_microseconds(void) { return 0; }

WEAK _Noreturn void fatal(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    abort();
}

WEAK unsigned clients_count(void) { return 1; }
WEAK bool clients_stopping(void) { return false; }
WEAK void clients_want(void) {}
WEAK bool client_is_called_back(void) { return false; }
WEAK void client_send(struct client *client, struct nvshare_report report) {}
WEAK void client_wake(struct client *client) {}
WEAK CUresult contexts_current(CUcontext *context) { *context = NULL; return CUDA_SUCCESS; }
WEAK bool reclaim(struct client *client, uint64_t bytes, uint64_t until) { return false; }

/* leave.c needs much thread-local memory, and a test loads many copies. */
WEAK __thread pid_t thread_number __attribute__((tls_model("initial-exec")));
WEAK void defer_begin(void) {}
WEAK void defer_end(void) {}
WEAK void mutex_lock(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }
WEAK void mutex_unlock(pthread_mutex_t *mutex) { pthread_mutex_unlock(mutex); }
WEAK void mutex_lock_to_read(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }
WEAK void mutex_unlock_read(pthread_mutex_t *mutex) { pthread_mutex_unlock(mutex); }
WEAK unsigned leave_note(const struct note *note) { return 0; }
WEAK void leave_forget(const unsigned *note) {}
WEAK void leave_abandoned(uintptr_t stack) {}
WEAK bool leave_is_on_signal_stack(void) { return false; }
WEAK void leave_calls(void (*also)(uintptr_t stack)) {}
WEAK void leave_if_cancelled(void) {}

WEAK void own_file_left(void *unused, uint64_t handle) {}
WEAK void memory_notify(void) {}
WEAK void capture_restore(void *unused, uint64_t mode) {}
WEAK uint32_t gate_block(void) { return 0; }
WEAK void gate_unblock(const uint32_t *before) {}
WEAK void gate_recheck(void) {}

WEAK bool capture_going_on(void) { return false; }
WEAK uint64_t streams_moment(void) { return 0; }
