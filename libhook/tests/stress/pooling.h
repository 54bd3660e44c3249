/* SPDX-License-Identifier: Apache-2.0 */
/* Memory from pools, in the order of streams: never waited for. */
#pragma once

#include "calls.h"

/* What a thread uses besides its stream. */
struct pooling {
    CUmemoryPool pool;               /* all threads'; the device's default is used as well */
    CUstream other;
    CUevent event;
    uint64_t taken, again;           /* how often, and at the address that was last freed */
    CUdeviceptr last;
};

static inline CUmemoryPool make_shared_pool(void)
{
    const CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
    };
    CUmemoryPool pool;
    check(cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
    return pool;
}

static inline void start_pooling(struct pooling *p, CUmemoryPool pool)
{
    p->pool = pool;
    check(cuStreamCreate(&p->other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuEventCreate(&p->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

static inline void stop_pooling(struct pooling *p)
{
    check(cuEventDestroy_v2(p->event), "cuEventDestroy");
    check(cuStreamDestroy_v2(p->other), "cuStreamDestroy");
}

static inline void order(struct pooling *p, CUstream before, CUstream behind)
{
    check(cuEventRecord(p->event, before), "cuEventRecord");
    check(cuStreamWaitEvent(behind, p->event, 0), "cuStreamWaitEvent");
}

/* For `stream`; now and then from the other one. 0: out of memory. */
static inline CUdeviceptr take_pooled(struct pooling *p, size_t bytes, CUstream stream,
                                      uint64_t random)
{
    CUdeviceptr address;
    CUstream from = random % 4 == 0 ? p->other : stream;
    CUresult result = random % 8 < 4 ? cuMemAllocAsync(&address, bytes, from)
                                     : cuMemAllocFromPoolAsync(&address, bytes, p->pool, from);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return 0;
    check(result, "cuMemAllocAsync");
    if (from != stream)
        order(p, from, stream);
    p->taken++;
    p->again += address == p->last;
    return address;
}

/* With the work of `stream` in flight; now and then behind it in the other one. */
static inline void give_pooled(struct pooling *p, CUdeviceptr address, CUstream stream,
                               uint64_t random)
{
    p->last = address;
    if (random % 4 == 0) {
        order(p, stream, p->other);
        check(cuMemFreeAsync(address, p->other), "cuMemFreeAsync");
    } else if (random % 8 == 1) {
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        check(cuMemFree_v2(address), "cuMemFree");
    } else {
        check(cuMemFreeAsync(address, stream), "cuMemFreeAsync");
    }
}

/* A stream ends before its frees have; limits change; figures fit together. */
static inline void tend_pools(struct pooling *p, uint64_t random)
{
    cuuint64_t threshold = random % 3 == 0 ? 0 : random % 3 == 1 ? (random >> 8) % (16 << 20)
                                                                 : UINT64_MAX;
    cuuint64_t used, high;
    check(cuMemPoolSetAttribute(p->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
          "cuMemPoolSetAttribute");
    check(cuMemPoolGetAttribute(p->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
          "cuMemPoolGetAttribute");
    check(cuMemPoolGetAttribute(p->pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high),
          "cuMemPoolGetAttribute");
    if (used > high) {
        fprintf(stderr, "stress: a pool has %llu bytes in use, %llu at most\n",
                (unsigned long long)used, (unsigned long long)high);
        exit(1);
    }
    if (random % 5 == 0)
        check(cuMemPoolTrimTo(p->pool, (random >> 8) % (16 << 20)), "cuMemPoolTrimTo");
    if (random % 7 == 0) {
        check(cuStreamDestroy_v2(p->other), "cuStreamDestroy");
        check(cuStreamCreate(&p->other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
}
