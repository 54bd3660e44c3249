/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "driver/forked.h"
#include "driver/leave.h"
#include "driver/own_file.h"
#include "driver/own_thread.h"
#include "driver/setting.h"

#define DESCRIPTORS_SEARCHED 256

/* The file at descriptor 2 at the start. Later the program may open a data file at this number. */
static KEPT_IN_CHILD struct {
    bool exists;
    struct file_identity file;
} first_stderr = { .exists = false };

/* The only constructor: runs before main(), which may redirect stderr or restrict processors. */
__attribute__((constructor)) static void note_start(void)
{
    int error = errno;
    first_stderr.exists = file_identify(STDERR_FILENO, &first_stderr.file);
    own_threads_note_processors();
    errno = error;
}

/* Whether the program has put the pipe `now` at descriptor 2 on purpose, as Jupyter's kernels do to
 * show output beneath the cell: dup2() leaves the source open. A pipe that merely got the free
 * number 2 has no second descriptor of its writing end. */
static bool is_redirected(const struct file_identity *now)
{
    struct file_identity other;
    bool found = false;
    for (int descriptor = STDERR_FILENO + 1; S_ISFIFO(now->mode) && !found
             && descriptor < DESCRIPTORS_SEARCHED; descriptor++)
        found = file_identify(descriptor, &other) && file_identity_equal(now, &other)
            && (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_WRONLY;
    return found;
}

/* Whether descriptor 2 is the original stderr or a pipe by redirection; *mode: its st_mode. */
static bool has_stderr(mode_t *mode)
{
    struct file_identity now;
    bool has = first_stderr.exists && file_identify(STDERR_FILENO, &now)
        && (file_identity_equal(&now, &first_stderr.file) || is_redirected(&now));
    if (has)
        *mode = now.mode;
    return has;
}

const char *error_text(int error_number)
{
    static __thread char buffer[64];
    return strerror_r(error_number, buffer, sizeof buffer);
}

/* Opens a terminal or pipe again, because O_NONBLOCK on descriptor 2 would change the open file,
 * which other processes share. */
static ssize_t write_unwaiting(mode_t mode, const char *text, size_t length)
{
    if (S_ISREG(mode))
        return write(STDERR_FILENO, text, length);
    if (S_ISSOCK(mode))
        return send(STDERR_FILENO, text, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    int again = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct pollfd ready = { .fd = STDERR_FILENO, .events = POLLOUT };
    ssize_t written = -1;
    if (again >= 0) {
        written = write(again, text, length);
        close(again);
    } else if (poll(&ready, 1, 0) == 1 && ready.revents == POLLOUT) {
        /* stderr of another user, as after su. poll() has just reported space, so write() waits
         * only if another process has filled that space since. */
        written = write(STDERR_FILENO, text, length);
    }
    return written;
}

/* Called DEFERRED, so that no signal ends or stops the program: SIGPIPE (no reader), SIGXFSZ (the
 * file may not grow) and SIGTTOU (of a background job). Signals caused by the write are
 * discarded. */
static void write_unharmed(mode_t mode, const char *text, size_t length)
{
    const struct timespec none = { .tv_sec = 0 };
    sigset_t pending, ours;
    sigpending(&pending);
    sigemptyset(&ours);
    if (!sigismember(&pending, SIGPIPE))
        sigaddset(&ours, SIGPIPE);
    if (!sigismember(&pending, SIGXFSZ))
        sigaddset(&ours, SIGXFSZ);
    if (write_unwaiting(mode, text, length) < 0 && (errno == EPIPE || errno == EFBIG))
        sigtimedwait(&ours, NULL, &none);
}

/* One write keeps lines of several threads and processes whole. */
static void print_line(const char *format, va_list arguments)
{
    char text[512];
    mode_t mode;
    int error = errno;
    int length = snprintf(text, sizeof text, "libnvshare[%d]: ", (int)getpid());
    length += vsnprintf(text + length, sizeof text - (size_t)length - 1, format, arguments);
    if (length > (int)sizeof text - 2)
        length = (int)sizeof text - 2;
    text[length++] = '\n';
    DEFERRED;
    if (has_stderr(&mode))
        write_unharmed(mode, text, (size_t)length);
    errno = error;
}

/* Prints the arguments of a variadic function. */
#define LINE(format)                                                               \
    do {                                                                           \
        va_list arguments;                                                         \
        va_start(arguments, format);                                               \
        print_line(format, arguments);                                             \
        va_end(arguments);                                                         \
    } while (0)

void debug(const char *format, ...)
{
    static KEPT_IN_CHILD _Atomic int wanted = -1;
    if (wanted < 0) {
        const char *value = setting("NVSHARE_DEBUG");
        wanted = value != NULL && strcmp(value, "0") != 0 && *value != '\0';
    }
    if (wanted)
        LINE(format);
}

void complain(const char *format, ...)
{
    LINE(format);
}

_Noreturn void fatal(const char *format, ...)
{
    LINE(format);
    abort();
}
