/* SPDX-License-Identifier: Apache-2.0 */
/* Handing a copy to a stream. */
#pragma once

#include "memory/copy.h"

enum copy_wait {
    COPY_ASYNC,                      /* returns at once where the driver's does */
    COPY_SYNC,                       /* returns when the bytes are there */
};

/* Hands the copy to the stream in the current context. */
CUresult copy_submit(CUstream stream, struct work work, enum copy_wait wait);
