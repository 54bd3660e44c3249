/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records the program's address reservations, sorted by address. The driver reports a reservation
 * only while something is mapped at the address, and a mapping only while its memory is resident.
 */
#include "memory/reservation.h"

#include <stdlib.h>
#include <string.h>

#include "driver/ops.h"
#include "gate/client.h"

struct reservation {
    CUdeviceptr base;
    size_t size;
    bool mixed;
};

static struct reservation *sorted;
static size_t count, room;

/* The index of the first reservation that ends after `address`. */
static size_t search(CUdeviceptr address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle].base + sorted[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct reservation *around(CUdeviceptr address)
{
    size_t index = search(address);
    return index < count && sorted[index].base <= address ? &sorted[index] : NULL;
}

static void insert(struct reservation one)
{
    if (count == room) {
        size_t more = room == 0 ? 64 : room * 2;
        struct reservation *larger = realloc(sorted, more * sizeof *sorted);
        if (larger == NULL)
            return;                  /* mapping in this range will wait for a turn */
        sorted = larger;
        room = more;
    }
    size_t index = search(one.base);
    memmove(&sorted[index + 1], &sorted[index], (count - index) * sizeof *sorted);
    sorted[index] = one;
    count++;
}

void reservation_add(CUdeviceptr base, size_t size)
{
    LOCKED(memory_lock);
    insert((struct reservation){ .base = base, .size = size });
}

CUresult reservation_free(CUdeviceptr base, size_t size)
{
    struct reservation gone = { .size = 0 };
    pthread_mutex_lock(&memory_lock);
    struct reservation *one = around(base);
    if (one != NULL) {
        gone = *one;
        memmove(one, one + 1, (size_t)(&sorted[--count] - one) * sizeof *one);
    }
    pthread_mutex_unlock(&memory_lock);
    /* Before the driver's call: afterwards another thread may have been given the same
     * addresses. */
    CUresult result = REAL(cuMemAddressFree)(base, size);
    if (result != CUDA_SUCCESS && gone.size > 0) {
        LOCKED(memory_lock);
        insert(gone);
    }
    return result;
}

void reservation_is_mixed(CUdeviceptr address)
{
    LOCKED(memory_lock);
    struct reservation *one = around(address);
    if (one != NULL)
        one->mixed = true;
}

bool reservation_is_ours(CUdeviceptr address, size_t size)
{
    const struct reservation *one = around(address);
    return one != NULL && !one->mixed && size <= one->size - (address - one->base);
}

bool reservation_around(CUdeviceptr address, CUdeviceptr *base, size_t *size)
{
    const struct reservation *one = around(address);
    if (one != NULL) {
        *base = one->base;
        *size = one->size;
    }
    return one != NULL;
}
