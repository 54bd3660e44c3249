/* SPDX-License-Identifier: Apache-2.0 */
/* Prints lines on stderr, and ends a process that could only compute wrong numbers or hang. No line
 * is printed while a write to stderr would block, or once the program has closed stderr. */
#pragma once

/* Prints one line, but only with NVSHARE_DEBUG=1. */
void debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints one line that the user must see. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the reason and aborts, where going on would compute wrong numbers or never end. */
_Noreturn void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As strerror(), but for several threads; valid until the calling thread's next call. */
const char *error_text(int error_number);
