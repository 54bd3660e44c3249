/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that nobody needs: bytes of a block that is away are in a file without a name, and
 * its physical memory is memory of this process, which is forgotten when it is unmapped.
 * Copies go through a buffer, as they would for a disk. A test can have any step fail.
 */
#define _GNU_SOURCE
#include "store_double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct file {
    FILE *file;
    char *buffer;                    /* NULL: nothing is moved */
};

/* Which step fails: the `fails_at`-th from now on, 1 is the next one. 0: none. */
SEEN const char *fails;
SEEN unsigned fails_at;
SEEN unsigned files, buffers, written, settled; /* that there are; written and settled so far */

static bool failing(const char *step)
{
    return fails != NULL && strcmp(fails, step) == 0 && fails_at > 0 && --fails_at == 0;
}

static CUresult map(struct block *block)
{
    if (failing("map"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mprotect((void *)block->address, block->size, PROT_READ | PROT_WRITE);
    return CUDA_SUCCESS;
}

static CUresult unmap(struct block *block)
{
    madvise((void *)block->address, block->size, MADV_DONTNEED);
    mprotect((void *)block->address, block->size, PROT_NONE);
    return CUDA_SUCCESS;
}

static CUresult open(struct block *block, const CUmemAccessDesc *access)
{
    (void)block, (void)access;
    return CUDA_SUCCESS;
}

static bool take(struct block *block, uint64_t allowance)
{
    struct file *own = calloc(1, sizeof *own);
    (void)allowance;
    if (failing("take") || own == NULL || (own->file = tmpfile()) == NULL) {
        free(own);
        return false;
    }
    files++;
    block->place.own = own;
    return true;
}

static void give(struct block *block)
{
    struct file *own = block->place.own;
    fclose(own->file);
    free(own);
    files--;
}

static char *buffer(struct block *block)
{
    struct file *own = block->place.own;
    if (own->buffer == NULL && (own->buffer = malloc(block->size)) != NULL)
        buffers++;
    return own->buffer;
}

static CUresult out(struct block *block, size_t offset, size_t size, CUstream stream)
{
    char *bytes = failing("out") ? NULL : buffer(block);
    return bytes == NULL ? CUDA_ERROR_UNKNOWN
        : REAL(cuMemcpyDtoHAsync_v2)(bytes + offset, block->address + offset, size, stream);
}

static CUresult in(struct block *block, size_t offset, size_t size, CUstream stream)
{
    struct file *own = block->place.own;
    char *bytes = failing("in") ? NULL : buffer(block);
    if (bytes == NULL
        || pread(fileno(own->file), bytes + offset, size, (off_t)offset) != (ssize_t)size)
        return CUDA_ERROR_UNKNOWN;
    return REAL(cuMemcpyHtoDAsync_v2)(block->address + offset, bytes + offset, size, stream);
}

static CUresult settle(struct block *block, CUresult result)
{
    struct file *own = block->place.own;
    settled++;
    if (result == CUDA_SUCCESS && failing("settle"))
        result = CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS && block->state == BLOCK_LEAVING) {
        written++;
        if (pwrite(fileno(own->file), own->buffer, block->size, 0) != (ssize_t)block->size)
            result = CUDA_ERROR_UNKNOWN;
    }
    buffers -= own->buffer != NULL;
    free(own->buffer);
    own->buffer = NULL;
    return result;
}

const struct store store_file = {
    .map = map, .unmap = unmap, .open = open,
    .take = take, .give = give, .out = out, .in = in, .settle = settle,
    .looks = true, .pieces = true, .keeps = true,
};

/* The same, but a place is empty when its bytes have come back, and the bytes are nobody's
 * business meanwhile. */
const struct store store_emptied = {
    .map = map, .unmap = unmap, .open = open,
    .take = take, .give = give, .out = out, .in = in, .settle = settle,
};
