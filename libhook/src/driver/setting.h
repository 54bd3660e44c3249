/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables, copied when the program first initialises CUDA: later another thread may
 * be changing the environment, and secure_getenv() could read freed memory. */
#pragma once

#include <stdbool.h>

void settings_read(void);

/* The value of a variable listed in setting.c; NULL: unset, or the program is setuid. */
const char *setting(const char *name);
bool setting_is_on(const char *name);              /* the variable is 1 */
/* Returns milliseconds, at most `most`; `usual` if unset or, with a complaint, invalid. */
unsigned long setting_milliseconds(const char *name, unsigned long usual, unsigned long most);
