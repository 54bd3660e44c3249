/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and freeing the same in turn, so that what was freed just before comes again. */
#pragma once

#include <stdlib.h>

#include "calls.h"
#include "worker.h"

#define CHURNED ((size_t)2 << 20)

/* stress.c */
static void device_fill(struct worker *w, struct buffer *b, uint64_t value);
static void drop(struct worker *w, struct buffer *b);

/* `b` is empty, and stays so. */
static void churn(struct worker *w, struct buffer *b)
{
    size_t bytes = CHURNED * (1 + below(w, 2));
    b->mapped = b->pooled = b->managed = false;    /* as it was tried last, and not had */
    while (w->held + bytes <= w->limit && below(w, 8) != 0
           && cuMemAlloc_v2(&b->address, bytes) == CUDA_SUCCESS) {
        b->words = bytes / 8;
        b->shadow = malloc(bytes);
        w->held += bytes;
        device_fill(w, b, next(w));
        drop(w, b);
        w->churned++;
    }
}
