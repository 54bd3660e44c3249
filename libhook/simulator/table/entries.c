/* SPDX-License-Identifier: Apache-2.0 */
#include "table/entries.h"

#include "driver/entry.h"

/* Only its address counts here; the prototype stands with the function. */
#define ENTRY(symbol, name, version, per_thread)                                         \
    extern __attribute__((visibility("default"))) char symbol;
#define HIDDEN(symbol, name, version, per_thread) extern char symbol;
#define UNSUPPORTED(symbol, name, version, per_thread)                                   \
    API(symbol, void)                                                                    \
    {                                                                                    \
        ENTER(ENTRY_INIT);                                                               \
        return CUDA_ERROR_NOT_SUPPORTED;                                                 \
    }
#include "table/entries.def"
#undef ENTRY
#undef UNSUPPORTED
#undef HIDDEN

const struct entry_point entry_points[] = {
#define ENTRY(symbol, name, version, per_thread) {#name, &symbol, version, per_thread},
#define HIDDEN(symbol, name, version, per_thread) {#name, &symbol, version, per_thread},
#define UNSUPPORTED(symbol, name, version, per_thread)                                   \
    {#name, (void *)symbol, version, per_thread},
#include "table/entries.def"
};

const size_t entry_point_count = sizeof entry_points / sizeof *entry_points;
