/* SPDX-License-Identifier: Apache-2.0 */
/* Symbol tables as in the System V ABI. A GNU hash table consists of a Bloom filter, in which each
 * symbol has set two bits of one word, buckets with the first symbol of each, and for each symbol
 * its hash. The hash's lowest bit marks the last
 * symbol in a bucket. Old objects have DT_HASH. */
#define _GNU_SOURCE                  /* struct dl_phdr_info */
#include "driver/symbols.h"

#include <stddef.h>
#include <stdint.h>

struct tables {
    ElfW(Sym) *symbols;
    const char *strings;
    uint32_t first, bucket_count;    /* fields of DT_GNU_HASH */
    uint32_t word_count, shift;
    const ElfW(Addr) *words;
    const uint32_t *buckets, *hashes;          /* NULL: the object has only DT_HASH */
    uint32_t count;                  /* from DT_HASH: number of symbols */
};

/* The value of the entry `tag` of the object's dynamic section, or 0. */
EARLY static ElfW(Addr) value_of(const struct link_map *object, ElfW(Sxword) tag)
{
    for (const ElfW(Dyn) *entry = object->l_ld; entry != NULL && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == tag)
            return entry->d_un.d_ptr;
    return 0;
}

/* glibc relocates the pointers in a writable dynamic section; a read-only one holds offsets. */
EARLY static void *at(const struct link_map *object, ElfW(Sxword) tag)
{
    ElfW(Addr) value = value_of(object, tag);
    return (void *)(value != 0 && value < object->l_addr ? object->l_addr + value : value);
}

EARLY static bool read_tables(const struct link_map *object, struct tables *tables)
{
    const uint32_t *gnu_hash = at(object, DT_GNU_HASH), *hash = at(object, DT_HASH);
    *tables = (struct tables){ .symbols = at(object, DT_SYMTAB), .strings = at(object, DT_STRTAB),
                               .count = gnu_hash == NULL && hash != NULL ? hash[1] : 0 };
    if (gnu_hash != NULL) {
        tables->bucket_count = gnu_hash[0];
        tables->first = gnu_hash[1];
        tables->word_count = gnu_hash[2];
        tables->shift = gnu_hash[3];
        tables->words = (const ElfW(Addr) *)&gnu_hash[4];
        tables->buckets = (const uint32_t *)(tables->words + tables->word_count);
        tables->hashes = tables->buckets + tables->bucket_count;
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
    const uint32_t bits = 8 * sizeof *tables->words;
    if (tables->word_count != 0) {
        ElfW(Addr) word = tables->words[hash / bits % tables->word_count];
        if ((word >> hash % bits & word >> (hash >> tables->shift) % bits & 1) == 0)
            return 0;
    }
    uint32_t index = tables->bucket_count == 0 ? 0 : tables->buckets[hash % tables->bucket_count];
    if (index < tables->first)
        return 0;
    for (;; index++) {
        uint32_t other = tables->hashes[index - tables->first];
        if ((other | 1) == (hash | 1) && is(tables, index, name))
            return index;
        if (other & 1)
            return 0;
    }
}

EARLY static uint32_t find_in_all(const struct tables *tables, const char *name)
{
    for (uint32_t index = 1; index < tables->count; index++)
        if (is(tables, index, name))
            return index;
    return 0;
}

EARLY void *symbols_function(const struct link_map *object, const char *name)
{
    struct tables tables;
    if (!read_tables(object, &tables))
        return NULL;
    uint32_t index = tables.buckets != NULL ? find_by_gnu_hash(&tables, name)
                                            : find_in_all(&tables, name);
    return index == 0 ? NULL : (void *)(object->l_addr + tables.symbols[index].st_value);
}

static ElfW(Dyn) *dynamic_section(const struct dl_phdr_info *object)
{
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    return NULL;
}

bool symbols_is_ours(const struct dl_phdr_info *object)
{
    return dynamic_section(object) == _DYNAMIC;
}

bool symbols_object(const struct dl_phdr_info *object, struct link_map *tables)
{
    *tables = (struct link_map){ .l_addr = object->dlpi_addr, .l_ld = dynamic_section(object) };
    return tables->l_ld != NULL && tables->l_ld != _DYNAMIC;
}

struct search {
    uintptr_t address;
    const char *name;
    ElfW(Addr) end;
    bool behind;                     /* the object that contains `address` has been passed */
    void *found;
};

static bool contains(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD
            && address - object->dlpi_addr - segment->p_vaddr < segment->p_memsz)
            return true;
    }
    return false;
}

static int find_after(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    struct link_map tables;
    (void)size;
    if (object->dlpi_addr == search->end)
        return 1;
    if (search->behind && symbols_object(object, &tables))
        search->found = symbols_function(&tables, search->name);
    search->behind = search->behind || contains(object, search->address);
    return search->found != NULL;
}

void *symbols_after(const void *address, const char *name, ElfW(Addr) end)
{
    struct search search = { .address = (uintptr_t)address, .name = name, .end = end };
    dl_iterate_phdr(find_after, &search);
    return search.found;
}

static uint32_t count(const struct tables *tables)
{
    if (tables->buckets == NULL)
        return tables->count;
    uint32_t last = 0;
    for (uint32_t i = 0; i < tables->bucket_count; i++)
        last = tables->buckets[i] > last ? tables->buckets[i] : last;
    while (last != 0 && (tables->hashes[last - tables->first] & 1) == 0)
        last++;
    return last == 0 ? 0 : last + 1;
}

bool symbols_table(const struct link_map *object, const ElfW(Sym) **begin, const ElfW(Sym) **end)
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
    for (uint32_t i = 1, end = count(&tables); i < end; i++) {
        ElfW(Sym) *symbol = &tables.symbols[i];
        if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC)
            visit(object, tables.strings + symbol->st_name, symbol);
    }
}

static void visit_references(const struct link_map *object, const struct tables *tables,
                             const ElfW(Rela) *relocations, size_t bytes, symbols_referred *visit)
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
    if (!read_tables(object, &tables))
        return;
    const ElfW(Rela) *data = at(object, DT_RELA);
    size_t relative = value_of(object, DT_RELACOUNT);  /* leading entries have no symbol */
    if (data != NULL)
        visit_references(object, &tables, data + relative,
                         value_of(object, DT_RELASZ) - relative * sizeof *data, visit);
    visit_references(object, &tables, at(object, DT_JMPREL), value_of(object, DT_PLTRELSZ), visit);
}
