/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environment variables that concern the library. All are copied when the program first initialises
 * CUDA, which is when the driver reads its own. Later another thread may be changing the
 * environment, and secure_getenv() could read freed memory.
 */
#pragma once

void settings_read(void);            /* copies them; later calls do nothing */

/* A variable listed in setting.c. NULL if it was unset or the program is setuid. */
const char *setting(const char *name);
/* The variable's value in milliseconds, at most `most`; `usual` if it is unset or, with a
 * complaint, if it is not such a number. */
unsigned long setting_milliseconds(const char *name, unsigned long usual, unsigned long most);
