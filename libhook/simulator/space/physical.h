/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory, as cuMemCreate allocates it: host memory at an address that only the
 * simulator knows. A piece never written gets garbage when it is first read, so unused device
 * memory costs no host memory. */
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
    _Atomic unsigned handles;        /* cuMemCreate, Retain, Import less Release */
    CUmemAllocationHandleType handle_types;
    pthread_mutex_t filling;         /* held to generate garbage; the last lock */
    _Atomic unsigned char *touched;  /* whether each piece has content; NULL: all have */
    int file;                        /* descriptor of exportable memory's file; else -1 */
    uint64_t export_id;              /* 0: the bytes count for this process */
    bool counted;                    /* counts against the GPU's memory */
};

/* Creates memory with one reference and no handle. OUT_OF_MEMORY: the GPU or the host is full. */
CUresult physical_create(struct device *device, size_t size, CUmemAllocationHandleType types,
                         struct physical **physical);
void physical_hold(struct physical *physical);
void physical_drop(struct physical *physical);

/* Before an access: generates garbage in untouched pieces that `overwrite` does not replace
 * whole. */
void physical_touch(struct physical *physical, size_t offset, size_t size, bool overwrite);

/* Moves the memory to a file, for an export. The address space is locked for writing. */
CUresult physical_publish(struct physical *physical);

CUresult physical_export(struct physical *physical, int *file);
CUresult physical_import(int file, struct physical **physical);
