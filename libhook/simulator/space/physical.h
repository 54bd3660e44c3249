/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory of a simulated GPU, as one cuMemCreate makes it.
 *
 * The bytes lie in memory of the host, at an address that nobody but the
 * simulator knows. What was never written holds garbage, made when it is first
 * read, so that memory which a program only allocates costs the host nothing.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver/context.h"

#define PHYSICAL_GRAIN ((size_t)2 << 20)     /* what cuMemGetAllocationGranularity says */
#define PHYSICAL_PIECE ((size_t)64 << 10)    /* unit in which garbage is made */

struct physical {
    struct device *device;
    size_t size;                     /* a multiple of PHYSICAL_GRAIN */
    char *memory;
    _Atomic unsigned references;     /* handles and mappings */
    _Atomic unsigned handles;        /* cuMemCreate, Retain, Import less Release */
    CUmemAllocationHandleType handle_types;
    pthread_mutex_t filling;         /* protects the making of garbage; nothing is taken while it is held */
    _Atomic unsigned char *touched;  /* per piece: holds something. NULL: all do */
    int file;                        /* with the bytes, if it may be exported, else -1 */
    uint64_t export_id;              /* 0: counted as this process's own */
    bool counted;                    /* against the GPU's memory */
};

/* One reference and no handle. CUDA_ERROR_OUT_OF_MEMORY if the GPU, or the host, has none left. */
CUresult physical_create(struct device *device, size_t size, CUmemAllocationHandleType types,
                         struct physical **physical);
void physical_hold(struct physical *physical);
void physical_drop(struct physical *physical);

/* Readies bytes for being read, or written in whole. */
void physical_touch(struct physical *physical, size_t offset, size_t size, bool overwrite);

/* The bytes mean nothing any more. */
void physical_spoil(struct physical *physical, size_t offset, size_t size);

/* Makes memory of this process alone exportable, bytes and all; the space's
 * lock is held for writing. */
CUresult physical_publish(struct physical *physical);

CUresult physical_export(struct physical *physical, int *file);
CUresult physical_import(int file, struct physical **physical);
