/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "gate/client.h"

/* Runs `action` while no work of the program is on the card or can be submitted, all its memory
 * is resident, and the client has room for `room` more bytes. `action` may pin `pins` bytes,
 * newly allocated or not. The context of the client's copy stream is current. memory_lock is held
 * by the caller and in `action`, and released in between.
 *
 * Returns the result of `action`; if `action` has not run: CUDA_ERROR_OUT_OF_MEMORY (the room
 * is refused), CUDA_ERROR_NOT_READY (work did not end within `patience` us) or
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. */
CUresult exclusively(struct client *client, uint64_t room, uint64_t pins, uint64_t patience,
                     CUresult (*action)(void *), void *argument);
