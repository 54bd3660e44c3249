/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocation, from the device's default pool and from a pool of the program. */
#include "actions.h"

static CUmemoryPool own, standard;

void pools_begin(void)
{
    const CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = one_in(8) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                 : CU_MEM_HANDLE_TYPE_NONE,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
    };
    if (DO(cuMemPoolCreate, (&own, &properties), "pool, handles %d", properties.handleTypes)
        != CUDA_SUCCESS)
        own = NULL;
    DO(cuDeviceGetDefaultMemPool, (&standard, device), "0");
}

void pools_end(void)
{
    cuuint64_t threshold = 0;
    wait_for_all();
    if (own != NULL)
        DO(cuMemPoolDestroy, (own), "pool");
    /* The next sequence finds the default pool in the state in which this sequence found it. */
    DO(cuMemPoolSetAttribute, (standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
       "standard, threshold 0");
    DO(cuMemPoolTrimTo, (standard, 0), "standard, 0");
}

void pool_used(void)
{
    struct lane lane = lane_any();
    size_t size = block_size();
    CUdeviceptr address = 0;
    bool from = own != NULL && one_in(2);
    if (size == 0)
        return;
    CUresult result = from
        ? IN_LANE(cuMemAllocFromPoolAsync, lane, (&address, size, own, lane.handle),
                  "%zu, pool, %s", size, lane.text)
        : IN_LANE(cuMemAllocAsync, lane, (&address, size, lane.handle), "%zu, %s", size, lane.text);
    if (result != CUDA_SUCCESS)
        return;
    struct block *block = block_new(POOLED, size, address);
    tell(" %s", address % 256 == 0 ? "aligned" : "crooked");
    block->pool = from ? own : standard;
    block->stream = lane.stream;
    block->busy = true;
    block_fill(block);
}

static void ask_pool(CUmemoryPool pool, const char *name)
{
    CUmemPool_attribute attribute = (CUmemPool_attribute)(1 + roll(9));
    cuuint64_t value = 0;
    /* The bytes of a pool are fixed only when all streams have reached their frees. */
    if (attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        wait_for_all();
    DO(cuMemPoolGetAttribute, (pool, attribute, &value), "%s, %d", name, (int)attribute);
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        tell_exception(POOL_RESERVES);
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        tell_exception(HIGH_WATER);
    else
        tell(" value=%llu", (unsigned long long)value);
}

static void set_pool(CUmemoryPool pool, const char *name)
{
    int on = (int)roll(2);
    cuuint64_t threshold = one_in(3) ? UINT64_MAX : roll(16 * MIB), zero = 0;
    switch (roll(4)) {
    WHEN(0, DO(cuMemPoolSetAttribute, (pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &on),
               "%s, opportunistic %d", name, on))
    WHEN(1, DO(cuMemPoolSetAttribute, (pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
               "%s, threshold %llu", name, (unsigned long long)threshold))
    case 2: {
        CUmemPool_attribute attribute = one_in(2) ? CU_MEMPOOL_ATTR_USED_MEM_HIGH
                                                  : CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        DO(cuMemPoolSetAttribute, (pool, attribute, &zero), "%s, %d, 0", name, (int)attribute);
        break;
    }
    default:
        DO(cuMemPoolSetAttribute, (pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &threshold),
           "%s, high %llu", name, (unsigned long long)threshold);
    }
}

static void open_pool(CUmemoryPool pool, const char *name)
{
    static const CUmemAccess_flags flags[] = { CU_MEM_ACCESS_FLAGS_PROT_NONE,
                                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = one_in(3) ? 9 : device },
        .flags = PICK(flags),
    };
    CUmemAccess_flags told = (CUmemAccess_flags)77;
    CUmemLocation here = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
    DO(cuMemPoolSetAccess, (pool, &access, 1), "%s, device %d, %d", name, access.location.id,
       (int)access.flags);
    DO(cuMemPoolGetAccess, (&told, pool, &here), "%s", name);
    tell(" access=%d", (int)told);
}

static void change_pool(void)
{
    CUmemoryPool current = NULL;
    if (own == NULL)
        return;
    DO(cuDeviceSetMemPool, (device, own), "pool");
    DO(cuDeviceGetMemPool, (&current, device), "0");
    tell(" %s", current == own ? "pool" : "another");
    pool_used();
    DO(cuDeviceSetMemPool, (device, standard), "standard");
}

void pools_asked(void)
{
    bool use_own = own != NULL && one_in(2);
    CUmemoryPool pool = use_own ? own : standard;
    const char *name = use_own ? "pool" : "standard";
    size_t keep = roll(16 * MIB);
    switch (roll(6)) {
    WHEN(0, set_pool(pool, name))
    WHEN(1, DO(cuMemPoolTrimTo, (pool, keep), "%s, %zu", name, keep))
    WHEN(2, open_pool(pool, name))
    WHEN(3, change_pool())
    default:
        ask_pool(pool, name);
    }
}
