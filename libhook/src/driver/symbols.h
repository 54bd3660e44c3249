/* SPDX-License-Identifier: Apache-2.0 */
/* Finds symbols by an object's own tables: the dynamic linker's functions are what the library is
 * looking for, or would change the program's next dlerror(). */
#pragma once

#include <link.h>
#include <stdbool.h>

/* Code that may run before a sanitizer has initialised itself, because sanitizers look up functions
 * through the library's dlsym(). Such code calls no intercepted function. */
#define EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

/* The function that `object` itself defines, or NULL. */
void *symbols_function(const struct link_map *object, const char *name);

bool symbols_same(const char *a, const char *b);

/* Not for EARLY code. */

/* False: the object has no tables, or is this library. */
bool symbols_object(const struct dl_phdr_info *object, struct link_map *tables);

bool symbols_table(const struct link_map *object, const ElfW(Sym) **begin,
                   const ElfW(Sym) **end);

/* For each function that `object` itself defines. */
typedef void symbols_visitor(const struct link_map *object, const char *name, ElfW(Sym) *symbol);
void symbols_functions(const struct link_map *object, symbols_visitor *visit);

/* For each slot in `object` where the loader puts the address of a symbol of another object. */
typedef void symbols_referred(const char *name, void **slot);
void symbols_references(const struct link_map *object, symbols_referred *visit);

bool symbols_needs(const struct link_map *object, const char *library);
