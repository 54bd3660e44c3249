/* SPDX-License-Identifier: Apache-2.0 */
/* What AddressSanitizer asks any library for. */
#pragma once

#define EXPORT __attribute__((visibility("default")))

EXPORT const char *__asan_default_options(void);
