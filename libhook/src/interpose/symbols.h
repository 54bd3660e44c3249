/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding a symbol in a loaded object by its own tables, without the dynamic
 * linker's functions: those are what we are looking for, or they would change
 * what the program next hears from dlerror().
 */
#pragma once

#include <link.h>

/* Of what may run before a sanitizer has initialised itself: the sanitizers
 * look up what they intercept through our dlsym(). Such code calls nothing
 * that they intercept either. */
#define EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

/* The address of the function `name` that `object` itself defines, or NULL. */
void *symbols_function(const struct link_map *object, const char *name);
