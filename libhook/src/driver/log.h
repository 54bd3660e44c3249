/* SPDX-License-Identifier: Apache-2.0 */
/* Prints lines on stderr, unless the write would block or the program has closed stderr. */
#pragma once

/* Prints only with NVSHARE_DEBUG=1. */
void debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints and aborts: for errors after which the program would compute wrong numbers or hang. */
_Noreturn void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As strerror(); valid until the calling thread's next call. */
const char *error_text(int error_number);
