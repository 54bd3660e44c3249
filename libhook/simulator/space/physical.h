/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory of a simulated GPU, as cuMemCreate allocates it.
 *
 * The bytes are in host memory, at an address that only the simulator knows. A piece that was never
 * written contains garbage, which is generated when the piece is first read, so that memory without
 * accesses costs no host memory.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver/context.h"

#define PHYSICAL_GRAIN ((size_t)2 << 20)     /* minimum of cuMemGetAllocationGranularity */
#define PHYSICAL_PIECE ((size_t)64 << 10)    /* unit in which garbage is generated */

struct physical {
    struct device *device;
    size_t size;                     /* a multiple of PHYSICAL_GRAIN */
    char *memory;
    _Atomic unsigned references;     /* of handles and mappings */
    _Atomic unsigned handles;        /* calls of cuMemCreate, Retain and Import, less calls of
                                        Release */
    CUmemAllocationHandleType handle_types;
    pthread_mutex_t filling;         /* protects the generation of garbage; its holder takes no
                                        other lock */
    _Atomic unsigned char *touched;  /* one byte for each piece: it has content. NULL: all pieces
                                        have */
    int file;                        /* of exportable memory, which is in a file; else -1 */
    uint64_t export_id;              /* 0: counted for this process */
    bool counted;                    /* counts against the GPU's memory */
};

/* Has one reference and no handle. CUDA_ERROR_OUT_OF_MEMORY: the GPU or the host has no memory
 * left. */
CUresult physical_create(struct device *device, size_t size, CUmemAllocationHandleType types,
                         struct physical **physical);
void physical_hold(struct physical *physical);
void physical_drop(struct physical *physical);

/* Must be called before bytes are read or written: generates garbage in untouched pieces, except
 * in pieces that `overwrite` replaces as a whole. */
void physical_touch(struct physical *physical, size_t offset, size_t size, bool overwrite);

/* Fills bytes of freed memory with garbage. */
void physical_spoil(struct physical *physical, size_t offset, size_t size);

/* Moves memory of this process to a file, so that it can be exported, with its bytes. The
 * address space is locked for writing. */
CUresult physical_publish(struct physical *physical);

CUresult physical_export(struct physical *physical, int *file);
CUresult physical_import(int file, struct physical **physical);
