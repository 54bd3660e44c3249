/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: the processor's and the card's, advised about and sent about. */
#pragma once

#include <string.h>

#include "worker.h"

#define CU_MEM_ATTACH_GLOBAL 1u

/* 0: out of memory. */
static inline CUdeviceptr take_managed(size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return 0;
    check(result, "cuMemAllocManaged");
    return address;
}

/* The processor writes some words of it, on the card or not, and reads one. */
static inline void touch_managed(struct worker *w, struct buffer *b)
{
    uint64_t *words = (uint64_t *)(uintptr_t)b->address;
    check(cuStreamSynchronize(w->stream), "cuStreamSynchronize");
    for (unsigned i = 0; i < 16; i++) {
        size_t place = below(w, b->words);
        words[place] = b->shadow[place] = next(w);
    }
    size_t place = below(w, b->words);
    if (words[place] != b->shadow[place]) {
        fprintf(stderr, "stress: wrong: the processor finds %#llx at word %zu, must be %#llx\n",
                (unsigned long long)words[place], place, (unsigned long long)b->shadow[place]);
        exit(1);
    }
    w->touched++;
}

/* Advice of any kind about a part of it, and a prefetch to either side. Where it was last
 * prefetched to is not asked here: on an H200 the driver alone does not always know of memory
 * that is being worked with, even with nothing of ours around. */
static inline void tend_managed(struct worker *w, struct buffer *b)
{
    const CUdevice to = below(w, 2) == 0 ? CU_DEVICE_CPU : 0;
    size_t bytes = b->words * 8, offset = below(w, bytes), size = 1 + below(w, bytes - offset);
    CUmem_advise advice = (CUmem_advise)(1 + below(w, 6));
    check(cuMemAdvise(b->address + offset, size, advice, to), "cuMemAdvise");
    check(cuMemPrefetchAsync(b->address, bytes, to, w->stream), "cuMemPrefetchAsync");
}
