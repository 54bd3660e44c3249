/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct options {
    uint64_t memory;                     /* bytes, or 0: `share` of what is free */
    double share;                        /* 0 to 1 */
    uint64_t chunk;                      /* bytes of each allocation */
    uint64_t used;                       /* bytes at the end, or 0: `used_share` of the memory */
    double used_share;
    uint64_t changed;                    /* bytes at the end, or 0: `changed_share` of these */
    double changed_share;
    uint64_t steps;
    uint64_t seconds;                    /* from the start on, or 0: as many steps as it says */
    bool until_told;                     /* until standard input ends, however long */
    uint64_t rounds;                     /* of nvshare_advance for a step, or 0: nvshare_step */
    uint64_t copied;                     /* bytes from page-locked memory before each step */
    uint64_t cpu_ms;                     /* computing on the CPU after each step */
    uint64_t kernel_us;                  /* spinning on the GPU after each chunk's step */
    uint64_t threads;
    uint64_t seed;
    int device;
    bool json;
    bool hold;
    bool check;
};

/* Exits with one line that names the value if an option is wrong. */
struct options options_parse(int count, char **arguments);
