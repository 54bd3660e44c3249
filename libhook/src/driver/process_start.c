/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE                  /* cpu_set_t */
#include "driver/process_start.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "driver/file_identity.h"
#include "driver/forked.h"
#include "driver/log.h"

#define DESCRIPTORS_SEARCHED 256

static KEPT_IN_CHILD struct {
    struct file_identity stderr_file;
    bool has_stderr, has_processors;
    cpu_set_t processors;
} started = { .has_stderr = false };

/* The only constructor. stderr and the allowed processors at the start are known only before
 * main(), which may redirect the one and restrict the others. The constructor runs in each program
 * with the library preloaded, so it only makes two system calls. */
__attribute__((constructor)) static void note_start(void)
{
    int error = errno;
    started.has_stderr = file_identify(STDERR_FILENO, &started.stderr_file);
    started.has_processors = sched_getaffinity(0, sizeof started.processors,
                                               &started.processors) == 0;
    errno = error;
}

/* dup2() leaves the source open. A pipe whose writing end has a second descriptor was therefore put
 * at number 2 on purpose: Jupyter's kernels show its output beneath the cell. A pipe that got the
 * number because it was free has no second descriptor. */
static bool is_redirected(const struct file_identity *now)
{
    struct file_identity other;
    bool found = false;
    int error = errno;
    for (int descriptor = STDERR_FILENO + 1; S_ISFIFO(now->mode) && !found
             && descriptor < DESCRIPTORS_SEARCHED; descriptor++)
        found = file_identify(descriptor, &other) && file_identity_equal(now, &other)
            && (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_WRONLY;
    errno = error;
    return found;
}

bool process_has_stderr(mode_t *mode)
{
    struct file_identity now;
    bool is = started.has_stderr && file_identify(STDERR_FILENO, &now)
        && (file_identity_equal(&now, &started.stderr_file) || is_redirected(&now));
    if (is)
        *mode = now.mode;
    return is;
}

void process_reset_thread(void)
{
    const struct sched_param none = { .sched_priority = 0 };
    if (sched_getscheduler(0) != SCHED_OTHER && sched_setscheduler(0, SCHED_OTHER, &none) != 0)
        debug("a thread keeps the scheduling policy of its maker: %s", error_text(errno));
    if (started.has_processors
        && sched_setaffinity(0, sizeof started.processors, &started.processors) != 0)
        debug("a thread keeps the processors of its maker: %s", error_text(errno));
}
