/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: where it lies, what it counts for, what is said of it. */
#include "check.h"

static const CUmemLocation card = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
static const CUmemLocation processor = {CU_MEM_LOCATION_TYPE_HOST, 0};

/* cuCtxSynchronize, and what the card has left then. */
static size_t left(void)
{
    OK(cuCtxSynchronize());
    return free_memory();
}

static CUdeviceptr managed(size_t size)
{
    CUdeviceptr address;
    OK(cuMemAllocManaged(&address, size, CU_MEM_ATTACH_GLOBAL));
    return address;
}

static int asked(CUmem_range_attribute attribute, CUdeviceptr address, size_t size)
{
    int value = 77;
    OK(cuMemRangeGetAttribute(&value, sizeof value, attribute, address, size));
    return value;
}

/* A page counts where a card has touched it, and no longer when it went to the host. */
static void counting(void)
{
    size_t before = left();
    CUdeviceptr p = managed(8 * MIB);
    uint64_t *words = (uint64_t *)(uintptr_t)p;
    words[0] = 3;
    CHECK(left() == before);
    OK(launch(fill, NULL, p, 2 * MIB / 8, 5, 0));
    CHECK(left() == before - 2 * MIB && words[0] == 5);
    OK(cuMemPrefetchAsync(p, 6 * MIB, card, 0, NULL));
    CHECK(left() == before - 6 * MIB);
    OK(cuMemPrefetchAsync(p, 4 * MIB, processor, 0, NULL));
    CHECK(left() == before - 2 * MIB && words[1] == 5 + 0x9E3779B97F4A7C15ull);
    OK(cuMemFree(p));
    CHECK(left() == before);
}

/* On a full card managed memory makes room for managed memory, and for nothing else. */
static void pressing(void)
{
    CUdeviceptr plain, first = managed(8 * MIB), second = managed(8 * MIB);
    OK(cuMemAlloc(&plain, left() - 10 * MIB));
    OK(cuMemsetD8(first, 1, 8 * MIB));
    OK(cuMemsetD8(second, 2, 8 * MIB));
    CHECK(left() <= 2 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&(CUdeviceptr){0}, 4 * MIB));
    const unsigned char *ones = (const unsigned char *)(uintptr_t)first;
    const unsigned char *twos = (const unsigned char *)(uintptr_t)second;
    for (size_t i = 0; i < 8 * MIB; i++)
        CHECK(ones[i] == 1 && twos[i] == 2);
    OK(cuMemFree(first));
    OK(cuMemFree(second));
    OK(cuMemFree(plain));
}

/* What is preferred on the host stays there; what is mostly read stays where it was, too. */
static void advice(void)
{
    size_t before = left();
    CUdeviceptr p = managed(4 * MIB);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB) == -2);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4 * MIB) == -2);
    OK(cuMemAdvise(p, 4 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, processor));
    OK(launch(fill, NULL, p, 4 * MIB / 8, 1, 0));
    CHECK(left() == before);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB) == -1);
    OK(cuMemAdvise(p, 4 * MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, card));
    OK(cuMemPrefetchAsync(p, 2 * MIB, card, 0, NULL));
    OK(cuMemPrefetchAsync(p, 2 * MIB, processor, 0, NULL));
    CHECK(left() == before - 2 * MIB);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 2 * MIB) == -1);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4 * MIB) == -2);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * MIB) == 1);
    OK(cuMemAdvise(p + 3 * MIB, MIB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, card));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * MIB) == 0);
    OK(cuMemAdvise(p, 4 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, card));
    int list[3] = {77, 77, 77}, place = 77;
    size_t rooms[2] = {sizeof list, sizeof place};
    CUmem_range_attribute attributes[2] = {CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                           CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE};
    OK(cuMemRangeGetAttributes((void *[]){list, &place}, rooms, attributes, 2, p, 4 * MIB));
    CHECK(list[0] == 0 && list[1] == -2 && list[2] == -2 && place == CU_MEM_LOCATION_TYPE_HOST);
    OK(cuMemFree(p));
    CHECK(left() == before);
}

int main(void)
{
    begin(0);
    counting();
    pressing();
    advice();
    puts("managed: right");
    return 0;
}
