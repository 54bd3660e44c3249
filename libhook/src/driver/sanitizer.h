/* SPDX-License-Identifier: Apache-2.0 */
/* AddressSanitizer's hook for default options. */
#pragma once

#define EXPORT __attribute__((visibility("default")))

EXPORT const char *__asan_default_options(void);
