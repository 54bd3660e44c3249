/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding a symbol in a loaded object by its own tables, without the dynamic
 * linker's functions: those are what we are looking for, or they would change
 * what the program next hears from dlerror().
 */
#pragma once

#include <link.h>
#include <stdbool.h>

/* Of what may run before a sanitizer has initialised itself: the sanitizers
 * look up what they intercept through our dlsym(). Such code calls nothing
 * that they intercept either. */
#define EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

/* The address of the function `name` that `object` itself defines, or NULL. */
void *symbols_function(const struct link_map *object, const char *name);

/* The rest is not for so early. */

/* What dl_iterate_phdr() tells of an object, for these. False: it has no tables, or is this library. */
bool symbols_object(const struct dl_phdr_info *object, struct link_map *tables);

/* Where its table of symbols begins and ends. False: it has none. */
bool symbols_table(const struct link_map *object, const ElfW(Sym) **begin,
                   const ElfW(Sym) **end);

/* Calls `visit` for each function that `object` itself defines. */
typedef void symbols_visitor(const struct link_map *object, const char *name, ElfW(Sym) *symbol);
void symbols_functions(const struct link_map *object, symbols_visitor *visit);

/* Calls `visit` for each place of `object` where the loader has put, or will put, the address of
 * a symbol that another object defines. */
typedef void symbols_referred(const char *name, void **place);
void symbols_references(const struct link_map *object, symbols_referred *visit);

/* Whether `object` names `library` as one that it needs. */
bool symbols_needs(const struct link_map *object, const char *library);
