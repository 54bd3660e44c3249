/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins opened with RTLD_DEEPBIND, and objects linked against functions of a newer driver, find
 * the driver's functions without dlsym(). Wrappers and stubs therefore replace the addresses in
 * the driver's symbol table, from which later bindings are made (real.c has looked up the driver's
 * own before), and in slots that are bound already. A driver loaded by dlmopen() is left alone: it
 * has contexts and memory of its own. */
#define _GNU_SOURCE                  /* dl_iterate_phdr() */
#include "driver/rebind.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/real.h"
#include "driver/stubs.h"
#include "driver/symbols.h"

/* Pages, and the rights that the segments of their object give them. */
struct pages {
    uintptr_t start, end;
    int rights;
};

static bool overlap(const struct pages *pages, uintptr_t start, uintptr_t end)
{
    return pages->start < end && start < pages->end;
}

static int find_rights(struct dl_phdr_info *object, size_t size, void *data)
{
    struct pages *pages = data;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type == PT_LOAD && overlap(pages, start, end))
            pages->rights = ((segment->p_flags & PF_R) != 0 ? PROT_READ : 0)
                            | ((segment->p_flags & PF_W) != 0 ? PROT_WRITE : 0)
                            | ((segment->p_flags & PF_X) != 0 ? PROT_EXEC : 0);
        /* RELRO: write-protected after relocation, up to the segment's last whole page. */
        if (segment->p_type == PT_GNU_RELRO
            && overlap(pages, start, end & ~((uintptr_t)getpagesize() - 1)))
            pages->rights &= ~PROT_WRITE;
    }
    return pages->rights != 0;
}

/* Makes the pages from `first` to `last` writable. False: the kernel refuses. */
static bool pages_open(struct pages *pages, const void *first, const void *last)
{
    uintptr_t size = (uintptr_t)getpagesize();
    pages->start = (uintptr_t)first & ~(size - 1);
    pages->end = ((uintptr_t)last & ~(size - 1)) + size;
    pages->rights = 0;
    dl_iterate_phdr(find_rights, pages);
    /* Some systems forbid pages that are writable and executable. */
    if ((pages->rights & PROT_WRITE) != 0
        || mprotect((void *)pages->start, pages->end - pages->start,
                    pages->rights | PROT_WRITE) == 0
        || mprotect((void *)pages->start, pages->end - pages->start, PROT_READ | PROT_WRITE) == 0)
        return true;
    debug("calls of the driver bypass the library: %s", error_text(errno));
    return false;
}

static void pages_close(const struct pages *pages)
{
    if ((pages->rights & PROT_WRITE) == 0
        && mprotect((void *)pages->start, pages->end - pages->start, pages->rights) != 0)
        mprotect((void *)pages->start, pages->end - pages->start, PROT_READ);
}

static void rename_one(const struct link_map *object, const char *name, ElfW(Sym) *symbol)
{
    void *entry = (void *)(object->l_addr + symbol->st_value);
    if (!is_entry_point(name))
        return;
    enum real_index hook = hook_for(name, entry);
    void *ours = hook != HOOK_COUNT ? hook_wrapper(hook) : stub_of(entry);
    __atomic_store_n(&symbol->st_value, (uintptr_t)ours - object->l_addr, __ATOMIC_RELEASE);
}

static void bind_one(const char *name, void **slot)
{
    if (!is_entry_point(name))
        return;
    enum real_index hook = hook_of_real(*slot);
    void *ours = hook != HOOK_COUNT ? hook_wrapper(hook) : stub_of(*slot);
    struct pages pages;
    if (ours == *slot)
        return;
    if (!pages_open(&pages, slot, slot)) {
        stubs_miss();
        return;
    }
    __atomic_store_n(slot, ours, __ATOMIC_RELEASE);
    pages_close(&pages);
}

static int bind_all(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)size, (void)data;
    struct link_map tables;
    if (symbols_object(object, &tables))
        symbols_references(&tables, bind_one);
    return 0;
}

/* Changes the symbol table before the slots, so that no object bound meanwhile is missed. */
void rebind_driver(void)
{
    struct pages pages;
    const ElfW(Sym) *begin, *end;
    if (symbols_table(real_driver(), &begin, &end) && pages_open(&pages, begin, end - 1)) {
        symbols_functions(real_driver(), rename_one);
        pages_close(&pages);
    } else {
        stubs_miss();
    }
    dl_iterate_phdr(bind_all, NULL);
}
