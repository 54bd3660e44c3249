/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actions of a sequence with their weights. Each action frees its objects, except blocks and
 * streams, which later actions find in blocks.h.
 *
 * This table and every call of roll() decide the sequence of a seed. A card's results for some
 * seeds are recorded in answers/, and the simulator must return the same results: after any
 * change here the results must be recorded again (transcript.py).
 */
#pragma once

#include "blocks.h"

#define ACTIONS(X) \
    X(allocate, 12) X(give_back, 9) X(pool_used, 8) X(pools_asked, 6) X(map_own, 4) \
    X(map_twice, 4) X(map_wrongly, 5) X(copy_line, 14) X(copy_shape, 6) X(copy_batch, 5) \
    X(copy_array, 2) X(fill, 10) X(fill_shape, 5) X(managed_advised, 9) X(launch, 10) \
    X(write_value, 4) X(capture, 5) X(build_graph, 3) X(ask_pointer, 14) X(ask_pointers, 6) \
    X(ask_card, 2) X(share, 5) X(visit_context, 1) X(reset_context, 2) X(use_module, 1) \
    X(mistake, 10) X(read_block, 6) X(stream_made, 3) X(stream_destroyed, 2) X(streams_asked, 4)
#define ACTION(name, weight) void name(void);
ACTIONS(ACTION)
#undef ACTION

void pools_begin(void);
void pools_end(void);

/* The module and the kernels of the current context. */
struct kernels {
    CUmodule module;
    CUfunction fill, step, add, checksum;
};
extern struct kernels kernels;
void kernels_begin(void);
void kernels_end(void);
