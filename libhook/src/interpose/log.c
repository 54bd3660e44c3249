/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interpose/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose/locked.h"

const char *setting(const char *name)
{
    return secure_getenv(name);
}

const char *error_text(int error_number)
{
    static __thread char buffer[64];
    return strerror_r(error_number, buffer, sizeof buffer);
}

/* One write, so that lines of several threads and processes stay whole. */
static void line(const char *format, va_list arguments)
{
    char text[512];
    int length = snprintf(text, sizeof text, "libnvshare[%d]: ", (int)getpid());
    length += vsnprintf(text + length, sizeof text - (size_t)length - 1, format, arguments);
    if (length > (int)sizeof text - 2)
        length = (int)sizeof text - 2;
    text[length++] = '\n';
    /* A thread cancelled in write() would keep what it has locked. */
    UNCANCELLED;
    /* Nothing can be done about a stderr that takes no line. */
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    (void)written;
}

void debug(const char *format, ...)
{
    static _Atomic int wanted = -1;
    if (wanted < 0) {
        const char *value = setting("NVSHARE_DEBUG");
        wanted = value != NULL && strcmp(value, "0") != 0 && *value != '\0';
    }
    if (!wanted)
        return;
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
}

void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
}

_Noreturn void fatal(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
    abort();
}
