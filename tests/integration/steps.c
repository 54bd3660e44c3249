/* SPDX-License-Identifier: Apache-2.0 */
/* steps FOLDER: for each file step-N verifies that each word of BYTES is N - 1, fills them with N,
 * and writes the number of wrong words to out-N. It has no pipe, so that CRIU can dump it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

#ifndef BYTES
#define BYTES ((size_t)64 << 20)
#endif
#define PIECE ((size_t)1 << 20)      /* the program's own memory is small, and so is its image */

int main(int count, char **words)
{
    CUcontext context;
    CUdeviceptr memory;
    unsigned *copy = malloc(PIECE);
    char path[4096], fresh[4096];
    if (count != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)
        || cuMemAlloc_v2(&memory, BYTES) || cuMemsetD32_v2(memory, ~0u, BYTES / 4))
        return 1;
    for (unsigned step = 0;; step++) {
        snprintf(path, sizeof path, "%s/step-%u", words[1], step);
        while (access(path, F_OK) != 0)
            usleep(20000);
        size_t wrong = 0;
        for (size_t at = 0; at < BYTES; at += PIECE) {
            wrong += cuMemcpyDtoH_v2(copy, memory + at, PIECE) != 0;
            for (size_t i = 0; i < PIECE / 4; i++)
                wrong += copy[i] != step - 1;
        }
        wrong += cuMemsetD32_v2(memory, step, BYTES / 4) != 0;
        snprintf(fresh, sizeof fresh, "%s/fresh", words[1]);
        FILE *file = fopen(fresh, "w");
        if (file == NULL)
            return 1;
        fprintf(file, "%zu", wrong);
        fclose(file);
        snprintf(path, sizeof path, "%s/out-%u", words[1], step);
        rename(fresh, path);
    }
}
