/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the symbol tables of a loaded object, which are those of the System V ABI. DT_SYMTAB and
 * DT_STRTAB hold the symbols and their names; DT_GNU_HASH (in old objects DT_HASH) leads from a
 * name to its symbol.
 *
 * A GNU hash table is a Bloom filter, then buckets with the first symbol of each, then for each
 * symbol its hash, whose lowest bit marks the last one in a bucket.
 */
#include "interpose/symbols.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tables {
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
};

/* glibc has relocated the pointers in a dynamic section in place; other
 * dynamic linkers, and glibc where the section is read-only, leave offsets. */
EARLY static const void *at(const struct link_map *object, ElfW(Addr) value)
{
    return (const void *)(value < object->l_addr ? object->l_addr + value : value);
}

EARLY static bool read_tables(const struct link_map *object, struct tables *tables)
{
    *tables = (struct tables){ NULL, NULL, NULL, NULL };
    if (object->l_ld == NULL)
        return false;
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            tables->symbols = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRTAB)
            tables->strings = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_GNU_HASH)
            tables->gnu_hash = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_HASH)
            tables->hash = at(object, entry->d_un.d_ptr);
    }
    return tables->symbols != NULL && tables->strings != NULL;
}

EARLY static bool same(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
}

EARLY static bool is(const struct tables *tables, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &tables->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC
           && same(tables->strings + symbol->st_name, name);
}

EARLY static uint32_t find_by_gnu_hash(const struct tables *tables, const char *name)
{
    uint32_t hash = 5381;
    for (const char *c = name; *c != '\0'; c++)
        hash = hash * 33 + (unsigned char)*c;
    uint32_t bucket_count = tables->gnu_hash[0], first = tables->gnu_hash[1];
    uint32_t words = tables->gnu_hash[2];
    const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)&tables->gnu_hash[4] + words);
    const uint32_t *hashes = buckets + bucket_count;
    uint32_t index = bucket_count == 0 ? 0 : buckets[hash % bucket_count];
    if (index < first)
        return 0;
    for (;; index++) {
        uint32_t other = hashes[index - first];
        if ((other | 1) == (hash | 1) && is(tables, index, name))
            return index;
        if (other & 1)
            return 0;
    }
}

EARLY static uint32_t find_in_all(const struct tables *tables, const char *name)
{
    for (uint32_t index = 1; index < tables->hash[1]; index++)
        if (is(tables, index, name))
            return index;
    return 0;
}

EARLY void *symbols_function(const struct link_map *object, const char *name)
{
    struct tables tables;
    uint32_t index = 0;
    if (!read_tables(object, &tables))
        return NULL;
    if (tables.gnu_hash != NULL)
        index = find_by_gnu_hash(&tables, name);
    else if (tables.hash != NULL)
        index = find_in_all(&tables, name);
    return index == 0 ? NULL : (void *)(object->l_addr + tables.symbols[index].st_value);
}
