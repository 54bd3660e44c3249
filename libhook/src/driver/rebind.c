/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leads those to our wrappers and stubs who would find the driver without asking us. A plugin that is opened
 * with RTLD_DEEPBIND looks into the libraries that it needs before it looks at us, and finds the
 * driver's own functions. So does whoever was linked with a function that only a newer driver has.
 *
 * The loader takes addresses from the driver's table of symbols. In a process that shares its GPU
 * that table names our wrappers, so whatever is bound later, lazily too, comes to us. We have the
 * driver's own addresses since before (real.c). What was bound earlier is found by the relocations
 * of the objects that need the driver: where the driver's address stands, ours is put.
 *
 * A second driver that dlmopen() loads is nobody's business here: it has contexts and memory of its
 * own, and cannot reach ours.
 */
#define _GNU_SOURCE                  /* dl_iterate_phdr() */
#include "driver/rebind.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/real.h"
#include "driver/stubs.h"
#include "driver/symbols.h"

static bool is_entry_point(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* Some pages, and what may be done with them as the segments of their object say. */
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
        /* Relocated, and then protected up to the last whole page. */
        if (segment->p_type == PT_GNU_RELRO
            && overlap(pages, start, end & ~((uintptr_t)getpagesize() - 1)))
            pages->rights &= ~PROT_WRITE;
    }
    return pages->rights != 0;
}

/* Those from the first's to the last's. False: they can be written to neither before nor now. */
static bool pages_open(struct pages *pages, const void *first, const void *last)
{
    uintptr_t size = (uintptr_t)getpagesize();
    pages->start = (uintptr_t)first & ~(size - 1);
    pages->end = ((uintptr_t)last & ~(size - 1)) + size;
    pages->rights = 0;
    dl_iterate_phdr(find_rights, pages);
    /* Where the system lets nobody write to what may be run: there are tables in these pages. */
    if ((pages->rights & PROT_WRITE) != 0
        || mprotect((void *)pages->start, pages->end - pages->start,
                    pages->rights | PROT_WRITE) == 0
        || mprotect((void *)pages->start, pages->end - pages->start, PROT_READ | PROT_WRITE) == 0)
        return true;
    debug("a way past the library stays open: %s", error_text(errno));
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

static void bind_one(const char *name, void **place)
{
    if (!is_entry_point(name))
        return;
    enum real_index hook = hook_of_real(*place);
    void *ours = hook != HOOK_COUNT ? hook_wrapper(hook) : stub_of(*place);
    struct pages pages;
    if (ours == *place)
        return;
    if (!pages_open(&pages, place, place)) {
        stubs_miss();
        return;
    }
    __atomic_store_n(place, ours, __ATOMIC_RELEASE);
    pages_close(&pages);
}

static int bind_all(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)size, (void)data;
    struct link_map tables;
    if (symbols_object(object, &tables) && symbols_needs(&tables, "libcuda.so.1"))
        symbols_references(&tables, bind_one);
    return 0;
}

/* The table first: what is bound by then is found afterwards. */
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
