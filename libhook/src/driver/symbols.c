/* SPDX-License-Identifier: Apache-2.0 */
/* Symbol tables as in the System V ABI. A GNU hash table consists of a Bloom filter, buckets with
 * the first symbol of each, and for each symbol its hash, whose lowest bit marks the last one in a
 * bucket. Old objects have DT_HASH. */
#define _GNU_SOURCE                  /* struct dl_phdr_info */
#include "driver/symbols.h"

#include <stddef.h>
#include <stdint.h>

struct tables {
    ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
};

/* glibc relocates pointers in a dynamic section in place, unless it is read-only; other dynamic
 * linkers leave offsets. */
EARLY static void *at(const struct link_map *object, ElfW(Addr) value)
{
    return (void *)(value < object->l_addr ? object->l_addr + value : value);
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

EARLY bool symbols_same(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
}

EARLY static bool is(const struct tables *tables, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &tables->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC
           && symbols_same(tables->strings + symbol->st_name, name);
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

bool symbols_object(const struct dl_phdr_info *object, struct link_map *tables)
{
    *tables = (struct link_map){ .l_addr = object->dlpi_addr };
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            tables->l_ld = (ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    return tables->l_ld != NULL && tables->l_ld != _DYNAMIC;
}

static uint32_t count(const struct tables *tables)
{
    const uint32_t *hash = tables->gnu_hash;
    if (hash == NULL)
        return tables->hash == NULL ? 0 : tables->hash[1];
    const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)&hash[4] + hash[2]);
    const uint32_t *hashes = buckets + hash[0];
    uint32_t last = 0;
    for (uint32_t i = 0; i < hash[0]; i++)
        last = buckets[i] > last ? buckets[i] : last;
    while (last != 0 && (hashes[last - hash[1]] & 1) == 0)
        last++;
    return last == 0 ? 0 : last + 1;
}

bool symbols_table(const struct link_map *object, const ElfW(Sym) **begin,
                   const ElfW(Sym) **end)
{
    struct tables tables;
    if (!read_tables(object, &tables))
        return false;
    *begin = tables.symbols;
    *end = tables.symbols + count(&tables);
    return *begin != *end;
}

void symbols_functions(const struct link_map *object, symbols_visitor *visit)
{
    struct tables tables;
    if (!read_tables(object, &tables))
        return;
    uint32_t end = count(&tables);
    for (uint32_t i = 1; i < end; i++) {
        ElfW(Sym) *symbol = &tables.symbols[i];
        if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC)
            visit(object, tables.strings + symbol->st_name, symbol);
    }
}

static void visit_references(const struct link_map *object, const struct tables *tables,
                             const ElfW(Rela) *relocations, size_t bytes,
                             symbols_referred *visit)
{
    for (size_t i = 0; relocations != NULL && i < bytes / sizeof *relocations; i++) {
        const ElfW(Sym) *symbol = &tables->symbols[ELF64_R_SYM(relocations[i].r_info)];
        if (ELF64_R_SYM(relocations[i].r_info) != 0 && symbol->st_shndx == SHN_UNDEF
            && relocations[i].r_addend == 0)
            visit(tables->strings + symbol->st_name,
                  (void **)(object->l_addr + relocations[i].r_offset));
    }
}

void symbols_references(const struct link_map *object, symbols_referred *visit)
{
    struct tables tables;
    const ElfW(Rela) *data = NULL, *calls = NULL;
    size_t data_bytes = 0, calls_bytes = 0, plain = 0;
    if (!read_tables(object, &tables))
        return;
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_RELA)
            data = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_RELASZ)
            data_bytes = entry->d_un.d_val;
        else if (entry->d_tag == DT_RELACOUNT)
            plain = entry->d_un.d_val;         /* relative relocations come first */
        else if (entry->d_tag == DT_JMPREL)
            calls = at(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_PLTRELSZ)
            calls_bytes = entry->d_un.d_val;
    }
    if (data != NULL)
        visit_references(object, &tables, data + plain, data_bytes - plain * sizeof *data, visit);
    visit_references(object, &tables, calls, calls_bytes, visit);
}

bool symbols_needs(const struct link_map *object, const char *library)
{
    struct tables tables;
    if (!read_tables(object, &tables))
        return false;
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && symbols_same(tables.strings + entry->d_un.d_val, library))
            return true;
    return false;
}
