/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AddressSanitizer's runtime ends a program in which it is not the first library, as when this one
 * is preloaded. The order matters only for libraries that replace malloc() and the like, which this
 * one does not. The runtime asks for its default options by this name; a definition in the program
 * takes precedence.
 */
#include "driver/sanitizer.h"

EXPORT const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
