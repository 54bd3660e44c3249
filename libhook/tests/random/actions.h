/* SPDX-License-Identifier: Apache-2.0 */
/* What a sequence is made of. Each leaves nothing behind that only it knows. */
#pragma once

#include "blocks.h"

void allocate(void);
void give_back(void);
void pool_used(void);
void pools_asked(void);
void pools_begin(void);
void pools_end(void);
void map_own(void);
void map_twice(void);
void map_wrongly(void);
void copy_line(void);
void copy_shape(void);
void copy_batch(void);
void copy_array(void);
void fill(void);
void fill_shape(void);
void managed_advised(void);
void launch(void);
void write_value(void);
void capture(void);
void build_graph(void);
void ask_pointer(void);
void ask_pointers(void);
void ask_card(void);
void share(void);
void visit_context(void);
void reset_context(void);
void use_module(void);
void mistake(void);
void read_block(void);

/* Of the current context. */
struct kernels {
    CUmodule module;
    CUfunction fill, step, add, checksum;
};
extern struct kernels kernels;
void kernels_begin(void);
void kernels_end(void);
