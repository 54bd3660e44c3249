/* SPDX-License-Identifier: Apache-2.0 */
/* The only answers that are not compared, each with the reason why it cannot be. */
#include "calls.h"

const char *const exceptions[EXCEPTIONS] = {
    [MAY_BE_READY] =
        "whether work has ended when one asks depends on how fast the machine is",
    [FREE_MEMORY] =
        "what is free depends on what others hold, the total on the limit that the daemon sets",
    [POOL_RESERVES] =
        "how much a pool takes at a time, and when it gives back, is the allocator's own choice",
    [HIGH_WATER] =
        "the most that was in use depends on when the frees of streams come to pass",
    [MAPPING_OF_THE_DRIVERS] =
        "the mapping around an allocation, where its granularity is the allocator's own",
    [REACH_OF_A_NIC] =
        "memory that may leave the card is not offered to devices that would keep its address",
    [HANDLE_FOR_A_RANGE] =
        "memory that may leave the card has to be still before it can be a file for other devices",
    [HARDWARE_DECOMPRESSION] =
        "it needs a way of allocating that mapped memory does not have",
};
