/* SPDX-License-Identifier: Apache-2.0 */
/* Finds symbols by an object's own tables: the C library's dlsym() is found in this way, too, and a
 * failing dlsym() would change what the program's next dlerror() returns. */
#pragma once

#include <link.h>
#include <stdbool.h>

/* Code that may run before a sanitizer has initialised itself, because sanitizers look up functions
 * through the library's dlsym(). Such code calls no intercepted function. */
#define EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

/* Returns the address of function `name` if `object` itself defines it, or NULL. */
void *symbols_function(const struct link_map *object, const char *name);

bool symbols_same(const char *a, const char *b);

/* EARLY code must not call the functions below. */

/* Fills in `tables`. False: the object has no dynamic section, or is this library. */
bool symbols_object(const struct dl_phdr_info *object, struct link_map *tables);
bool symbols_is_ours(const struct dl_phdr_info *object);   /* whether it is this library */

/* The first definition of function `name` in the objects loaded after the one that contains
 * `address`, and before the one at `end`, other than in this library. NULL: there is none. */
void *symbols_after(const void *address, const char *name, ElfW(Addr) end);

bool symbols_table(const struct link_map *object, const ElfW(Sym) **begin, const ElfW(Sym) **end);

/* Calls `visit` for each function that `object` itself defines. */
typedef void symbols_visitor(const struct link_map *object, const char *name, ElfW(Sym) *symbol);
void symbols_functions(const struct link_map *object, symbols_visitor *visit);

/* Calls `visit` for each slot of `object` that holds the address of another object's symbol. */
typedef void symbols_referred(const char *name, void **slot);
void symbols_references(const struct link_map *object, symbols_referred *visit);
