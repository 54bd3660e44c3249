/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct options {
    uint64_t memory;                     /* bytes, or 0: `share` of the free memory */
    double share;                        /* 0 to 1 */
    uint64_t chunk;                      /* bytes of each allocation */
    uint64_t used;                       /* bytes at the end, or 0: `used_share` of the memory */
    double used_share;
    uint64_t changed;                    /* bytes at the end of those, or 0: this share of them */
    double changed_share;
    uint64_t steps;
    uint64_t seconds;                    /* to run from the start on, or 0: `steps` steps */
    bool until_told;                     /* run until standard input ends */
    uint64_t rounds;                     /* of nvshare_advance in a step; 0: nvshare_step runs */
    uint64_t copied;                     /* bytes copied from page-locked memory before a step */
    uint64_t cpu_ms;                     /* ms of computing on the CPU after each step */
    uint64_t kernel_us;                  /* us of spinning on the GPU after each chunk's step */
    uint64_t threads;
    uint64_t seed;
    int device;
    bool json;
    bool hold;
    bool check;
};

/* Exits with one line that names the value if an option is wrong. */
struct options options_parse(int count, char **arguments);
