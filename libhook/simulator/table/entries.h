/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all entry points, sorted by name. */
#ifndef NVSHARE_SIMULATOR_ENTRIES_H
#define NVSHARE_SIMULATOR_ENTRIES_H

#include <stddef.h>

struct entry_point {
    const char *name;                /* as cuGetProcAddress is asked for it */
    void *function;
    int version;                     /* of CUDA, that it came with */
    int per_thread;                  /* it means the thread's own default stream */
};

extern const struct entry_point entry_points[];
extern const size_t entry_point_count;

#endif
