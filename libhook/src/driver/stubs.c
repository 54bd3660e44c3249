/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE                  /* dl_iterate_phdr() */
#include "driver/stubs.h"

#include <errno.h>
#include <link.h>
#include <stdint.h>

#include "driver/bell.h"
#include "driver/forked.h"
#include "driver/leave.h"
#include "driver/real.h"
#include "driver/symbols.h"

extern const char stub_first[], stub_end[];
void stub_slow(void);

KEPT_IN_CHILD _Atomic(void *) stub_targets[STUBS] = { NULL };
static KEPT_IN_CHILD _Atomic(void *) functions[STUBS] = { NULL };       /* NULL: the stub is free */
static KEPT_IN_CHILD _Atomic bool missed = false;

static struct {
    _Atomic bool closed, called, lost;
    _Atomic uint32_t opened;         /* futex word (bell.h), rung by stubs_open(), stubs_lose() */
    void (*on_call)(void);
} stubs;

/* The address range of the driver's code. */
struct text {
    uintptr_t base, begin, end;
};

static int find_text(struct dl_phdr_info *object, size_t size, void *data)
{
    struct text *text = data;
    (void)size;
    if (object->dlpi_addr != text->base)
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) != 0) {
            text->begin = object->dlpi_addr + segment->p_vaddr;
            text->end = text->begin + segment->p_memsz;
        }
    }
    return 1;
}

static bool is_of_driver(const void *entry)
{
    static KEPT_IN_CHILD _Atomic uintptr_t begin = 0, end = 0;
    if (atomic_load(&end) == 0 && real_driver_present()) {
        struct text text = { .base = real_driver()->l_addr };
        dl_iterate_phdr(find_text, &text);
        atomic_store(&begin, text.begin);
        atomic_store(&end, text.end);
    }
    return (uintptr_t)entry >= atomic_load(&begin) && (uintptr_t)entry < atomic_load(&end);
}

static size_t stub_size(void)
{
    return (size_t)(stub_end - stub_first) / STUBS;
}

/* Two threads may harmlessly make a stub each for one function. */
void *stub_of(void *entry)
{
    if (!is_of_driver(entry))
        return entry;
    for (unsigned i = 0; i < STUBS; i++) {
        void *there = NULL;
        if (atomic_compare_exchange_strong(&functions[i], &there, entry)) {
            atomic_store(&stub_targets[i], entry);
            /* stubs_close() may have passed entry `i` before. If stubs_open() runs meanwhile, this
             * stub keeps the slow path, which only takes longer. */
            if (atomic_load(&stubs.closed))
                atomic_store(&stub_targets[i], (void *)stub_slow);
        }
        if (there == entry)         /* the thread that took entry `i` may not have stored it yet */
            atomic_compare_exchange_strong(&stub_targets[i], &(void *){ NULL }, entry);
        if (there == NULL || there == entry)
            return (void *)(stub_first + stub_size() * i);
    }
    stubs_miss();
    return entry;
}

void stubs_miss(void)
{
    atomic_store(&missed, true);
}

bool stubs_close(void (*called)(void))
{
    for (int i = 0; i < REAL_COUNT; i++)
        stub_of(atomic_load(&real_functions[i]));
    if (atomic_load(&missed))
        return false;
    stubs.on_call = called;
    atomic_store(&stubs.called, false);
    atomic_store(&stubs.closed, true);
    lock_after(stubs_await);         /* else threads would wait in the driver's stead with a lock */
    for (unsigned i = 0; i < STUBS && atomic_load(&functions[i]) != NULL; i++)
        atomic_store(&stub_targets[i], (void *)stub_slow);
    for (int i = 0; i < REAL_COUNT; i++)
        atomic_store(&real_functions[i], stub_of(atomic_load(&real_functions[i])));
    return true;
}

void stubs_open(void)
{
    for (int i = 0; i < REAL_COUNT; i++) {
        const char *stub = atomic_load(&real_functions[i]);
        if (stub >= stub_first && stub < stub_end)
            atomic_store(&real_functions[i],
                         atomic_load(&functions[(size_t)(stub - stub_first) / stub_size()]));
    }
    atomic_store(&stubs.closed, false);
    lock_after(NULL);
    for (unsigned i = 0; i < STUBS && atomic_load(&functions[i]) != NULL; i++)
        atomic_store(&stub_targets[i], atomic_load(&functions[i]));
    bell_ring(&stubs.opened);
}

/* What the driver answers to each restore of a process after one that lacked memory. */
static CUresult lost_call(void)
{
    return CUDA_ERROR_OPERATING_SYSTEM;
}

/* A program that reports an error may not check whether the driver has described it. */
static bool describes_errors(const void *entry)
{
    static const char *const names[] = { "cuGetErrorString", "cuGetErrorName" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (symbols_function(real_driver(), names[i]) == entry)
            return true;
    return false;
}

static void *target_if_lost(unsigned index)
{
    void *entry = atomic_load(&functions[index]);
    return describes_errors(entry) ? entry : (void *)lost_call;
}

void stubs_lose(void)
{
    atomic_store(&stubs.lost, true);
    for (unsigned i = 0; i < STUBS && atomic_load(&functions[i]) != NULL; i++)
        atomic_store(&stub_targets[i], target_if_lost(i));
    bell_ring(&stubs.opened);
}

bool stubs_called(void)
{
    return atomic_load(&stubs.called);
}

void stubs_await(void)
{
    for (;;) {
        uint32_t opened = atomic_load(&stubs.opened);
        if (!atomic_load(&stubs.closed) || atomic_load(&stubs.lost))
            return;
        if (!atomic_exchange(&stubs.called, true))
            stubs.on_call();
        bell_wait(&stubs.opened, opened, NULL);
    }
}

void *stub_wait(unsigned index)
{
    int before = errno;
    stubs_await();
    errno = before;
    return is_forked_child() ? NULL : atomic_load(&stubs.lost) ? target_if_lost(index)
        : atomic_load(&functions[index]);
}
