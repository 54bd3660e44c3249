/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on stderr, and the end of the process where going on would be worse. A stderr that would
 * block, or that the program has closed, gets no line. */
#pragma once

/* Printed with NVSHARE_DEBUG=1 only. */
void debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One line that the user must see. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Going on would compute wrong numbers or never end: prints the reason and aborts. */
_Noreturn void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* strerror for threads; valid until this thread's next call. */
const char *error_text(int error_number);
