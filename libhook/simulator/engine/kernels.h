/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that the simulated GPU can run, found by the name that follows
 * `.entry` in a program's PTX. All parameters are 64 bits wide; a pointer may
 * be one into device memory, managed memory, or registered host memory. Words
 * are 64 bits, arithmetic is modulo 2^64, and the result does not depend on
 * how many blocks and threads are launched.
 *
 *   nvshare_fill(ptr, count, value)     word[i] = value + i * 0x9E3779B97F4A7C15
 *   nvshare_step(ptr, count, step)      word[i] = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9
 *                                                 + step + i, x being the word as it was
 *   nvshare_advance(ptr, count, rounds) rounds times: word[i] = word[i] * 0x5851F42D4C957F2D
 *                                                 + 0x14057B7EF767814F
 *   nvshare_add(dst, a, b, count)       dst[i] = a[i] + b[i]
 *   nvshare_checksum(ptr, count, out)   out[0] += sum of word[i] * (2 * i + 1)
 *   nvshare_examine(targets, count, seed, every, out)  what the library asks of
 *                                       its own memory; libhook/src/block/examine.cu
 *   nvshare_spin(microseconds)          keeps the GPU busy for that long
 *   nvshare_wait_flag(ptr, value)       waits until the 32-bit word at ptr is value
 *   nvshare_meet(ptr, value)            adds 1 to the 32-bit word at ptr, and waits until it is
 *                                       value or more, as kernels on several cards meet
 *
 * i counts words from 0. PTX that is meant for real cards too must give its
 * kernels these names and parameters, in this order, all `.param .b64`.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/device.h"

#define KERNEL_ARGUMENTS 5

struct kernel {
    const char *name;
    int parameters;
    /* `doomed` becomes true when memory is unmapped that the kernel accesses. */
    CUresult (*run)(struct device *device, const uint64_t *arguments,
                    const _Atomic bool *doomed);
    /* For each pointer parameter: bytes of an element, and the index of the parameter that has the
     * number of elements; -1: one element. */
    struct {
        int count;
        size_t bytes;
    } reach[KERNEL_ARGUMENTS];
};

/* Bytes accessed through parameter `index`; 0: it is not a pointer. */
size_t kernel_reach(const struct kernel *kernel, const uint64_t *arguments, int index);
const struct kernel *kernel_named(const char *name, size_t length);
