/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AddressSanitizer's runtime ends a program in which it is not the first library, which it is not
 * where this one is preloaded. It matters only to libraries that replace malloc() and the like; this
 * one does not. The runtime asks for its default options by this name, of which the program's own
 * definition comes first.
 */
#include "driver/sanitizer.h"

EXPORT const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
