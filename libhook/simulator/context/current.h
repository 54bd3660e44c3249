/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's stack of contexts, and its own default streams. */
#ifndef NVSHARE_SIMULATOR_CURRENT_H
#define NVSHARE_SIMULATOR_CURRENT_H

#include "driver/context.h"

void current_push(struct context *context);
void current_pop(void);

/* The thread's CU_STREAM_PER_THREAD in a context; made when first asked for. */
struct stream *current_stream(struct context *context);

#endif
