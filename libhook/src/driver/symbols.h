/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a symbol in a loaded object by the object's own tables, without the dynamic linker's
 * functions: some of those are what the library is looking for, and the others would change the
 * program's next dlerror().
 */
#pragma once

#include <link.h>
#include <stdbool.h>

/* Marks code that may run before a sanitizer has initialised itself: sanitizers look up the
 * functions that they intercept through the library's dlsym(). Such code calls no intercepted
 * function. */
#define EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

/* The address of the function `name` that `object` itself defines, or NULL. */
void *symbols_function(const struct link_map *object, const char *name);

bool symbols_same(const char *a, const char *b);   /* whether two names are equal */

/* The following functions may not run before a sanitizer has initialised itself. */

/* Fills in `tables` from dl_iterate_phdr()'s entry. False: the object
 * has no tables, or is this library. */
bool symbols_object(const struct dl_phdr_info *object, struct link_map *tables);

/* The begin and end of the object's symbol table. False: it has none. */
bool symbols_table(const struct link_map *object, const ElfW(Sym) **begin,
                   const ElfW(Sym) **end);

/* Calls `visit` for each function that `object` itself defines. */
typedef void symbols_visitor(const struct link_map *object, const char *name, ElfW(Sym) *symbol);
void symbols_functions(const struct link_map *object, symbols_visitor *visit);

/* Calls `visit` for each location in `object` where the loader puts the address of a symbol that
 * another object defines. */
typedef void symbols_referred(const char *name, void **slot);
void symbols_references(const struct link_map *object, symbols_referred *visit);

/* Whether `object` lists `library` as needed. */
bool symbols_needs(const struct link_map *object, const char *library);
