/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "space/physical.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Data for an importer, after the bytes of an exportable allocation. */
struct trailer {
    uint64_t magic;
    uint64_t export_id;
    uint64_t size;
    int32_t gpu;
};

#define TRAILER_MAGIC 0x6e767368206d656dull
#define TRAILER_SPACE 4096

static void fill_with_garbage(char *memory, size_t size, uint64_t seed)
{
    uint64_t *words = (uint64_t *)memory;
    for (size_t i = 0; i < size / 8; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        words[i] = seed | 1;         /* no word is zero */
    }
}

static bool starts_with_zeros(void)
{
    const char *setting = secure_getenv("NVSHARE_SIM_ZERO");
    return setting != NULL && strcmp(setting, "1") == 0;
}

/* A different seed each time, so that no test depends on the values. */
static uint64_t garbage_seed(const char *memory)
{
    static _Atomic uint64_t made;
    return (atomic_fetch_add(&made, 1) + 1) * 0x9E3779B97F4A7C15ull ^ (uintptr_t)memory;
}

static bool make_private(struct physical *physical)
{
    physical->memory = mmap(NULL, physical->size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (physical->memory == MAP_FAILED)
        return false;
    madvise(physical->memory, physical->size, MADV_HUGEPAGE);   /* fewer page faults, where
                                                                   supported */
    if (!starts_with_zeros())
        physical->touched = calloc(physical->size / PHYSICAL_PIECE, 1);
    return true;
}

/* Filled at once, as other processes do not know which pieces were written. */
static bool make_exportable(struct physical *physical)
{
    size_t whole = physical->size + TRAILER_SPACE;
    physical->file = shared_file(physical->export_id, true);
    if (physical->file < 0 || ftruncate(physical->file, (off_t)whole) != 0)
        return false;
    physical->memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            physical->file, 0);
    if (physical->memory == MAP_FAILED)
        return false;
    if (!starts_with_zeros())
        fill_with_garbage(physical->memory, physical->size, garbage_seed(physical->memory));
    struct trailer trailer = {TRAILER_MAGIC, physical->export_id, physical->size,
                              shared_actual(physical->device->gpu)};
    memcpy(physical->memory + physical->size, &trailer, sizeof trailer);
    return true;
}

static void destroy(struct physical *physical)
{
    if (physical->memory != NULL && physical->memory != MAP_FAILED)
        munmap(physical->memory, physical->size + (physical->export_id != 0 ? TRAILER_SPACE : 0));
    if (physical->file >= 0)
        close(physical->file);
    if (physical->export_id != 0)
        shared_leave(physical->export_id);
    else if (physical->counted)
        shared_give_back(physical->device->gpu, physical->size);
    free((void *)physical->touched);
    pthread_mutex_destroy(&physical->filling);
    free(physical);
}

static struct physical *physical_new(struct device *device, size_t size,
                                     CUmemAllocationHandleType types)
{
    struct physical *physical = checked(calloc(1, sizeof *physical));
    *physical = (struct physical){.device = device, .size = size, .references = 1,
                                  .handle_types = types, .file = -1};
    pthread_mutex_init(&physical->filling, NULL);
    return physical;
}

CUresult physical_create(struct device *device, size_t size, CUmemAllocationHandleType types,
                         struct physical **result)
{
    struct physical *physical = physical_new(device, size, types);
    physical->counted = shared_take(device->gpu, size);
    bool exportable = types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (physical->counted && exportable)
        physical->export_id = shared_publish(device->gpu, size);
    if (!physical->counted || (exportable && physical->export_id == 0)
        || !(exportable ? make_exportable(physical) : make_private(physical))) {
        destroy(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *result = physical;
    return CUDA_SUCCESS;
}

void physical_hold(struct physical *physical)
{
    atomic_fetch_add(&physical->references, 1);
}

void physical_drop(struct physical *physical)
{
    if (atomic_fetch_sub(&physical->references, 1) == 1)
        destroy(physical);
}

void physical_touch(struct physical *physical, size_t offset, size_t size, bool overwrite)
{
    if (physical->touched == NULL || size == 0)
        return;
    size_t last = (offset + size - 1) / PHYSICAL_PIECE;
    for (size_t piece = offset / PHYSICAL_PIECE; piece <= last; piece++) {
        if (atomic_load_explicit(&physical->touched[piece], memory_order_acquire) != 0)
            continue;
        pthread_mutex_lock(&physical->filling);
        if (physical->touched[piece] == 0) {
            size_t start = piece * PHYSICAL_PIECE;
            bool whole = overwrite && offset <= start && offset + size >= start + PHYSICAL_PIECE;
            if (!whole)
                fill_with_garbage(physical->memory + start, PHYSICAL_PIECE,
                                  garbage_seed(physical->memory + start));
            atomic_store_explicit(&physical->touched[piece], 1, memory_order_release);
        }
        pthread_mutex_unlock(&physical->filling);
    }
}

CUresult physical_publish(struct physical *physical)
{
    if (physical->file >= 0)
        return CUDA_SUCCESS;
    physical_touch(physical, 0, physical->size, false);
    uint64_t id = shared_publish(physical->device->gpu, physical->size);
    struct physical copy = {.device = physical->device, .size = physical->size,
                            .export_id = id, .file = -1};
    if (id == 0 || !make_exportable(&copy)) {
        if (copy.file >= 0)
            close(copy.file);
        if (id != 0) {               /* undo the change of the count */
            shared_leave(id);
            shared_take(physical->device->gpu, physical->size);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(copy.memory, physical->memory, physical->size);
    munmap(physical->memory, physical->size);
    free((void *)physical->touched);
    physical->memory = copy.memory;
    physical->touched = NULL;
    physical->file = copy.file;
    physical->export_id = id;
    return CUDA_SUCCESS;
}

CUresult physical_export(struct physical *physical, int *file)
{
    FAIL_IF(physical->file < 0, CUDA_ERROR_INVALID_VALUE);
    *file = shared_descriptor(physical->export_id);
    return *file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult physical_import(int file, struct physical **result)
{
    struct trailer trailer;
    struct stat status;
    FAIL_IF(fstat(file, &status) != 0, CUDA_ERROR_UNKNOWN);
    FAIL_IF(status.st_size < TRAILER_SPACE
            || pread(file, &trailer, sizeof trailer, status.st_size - TRAILER_SPACE)
                   != (ssize_t)sizeof trailer
            || trailer.magic != TRAILER_MAGIC
            || (uint64_t)status.st_size != trailer.size + TRAILER_SPACE, CUDA_ERROR_INVALID_VALUE);
    FIND(struct device, device, device_of_gpu(trailer.gpu), CUDA_ERROR_INVALID_DEVICE);
    /* Without a file: the driver does not export imported memory. */
    struct physical *physical = physical_new(device, trailer.size,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    physical->memory = mmap(NULL, trailer.size + TRAILER_SPACE, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, file, 0);
    if (physical->memory == MAP_FAILED || !shared_join(trailer.export_id)) {
        destroy(physical);
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical->export_id = trailer.export_id;
    *result = physical;
    return CUDA_SUCCESS;
}
