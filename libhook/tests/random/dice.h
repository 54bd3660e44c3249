/* SPDX-License-Identifier: Apache-2.0 */
/* What a sequence does depends on its seed alone, never on what the driver answers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void dice_seed(uint64_t seed);
uint64_t roll(uint64_t sides);       /* 0 to sides - 1 */

static inline bool one_in(uint64_t n)
{
    return roll(n) == 0;
}

#define PICK(list) ((list)[roll(sizeof(list) / sizeof *(list))])
