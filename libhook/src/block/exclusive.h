/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "gate/client.h"

/*
 * Runs `action` while no work of the program runs on the card or can be submitted, all its memory
 * is resident and none of it moves, and the client has room for `room` more bytes. Afterwards
 * `pins` bytes may be pinned, of these or of the client's other memory. `action` may use the
 * client's copy stream: the stream's context is current. Called with memory_lock held; the lock is
 * released meanwhile and held again in `action`.
 *
 * Returns what `action` returns; CUDA_ERROR_OUT_OF_MEMORY if the room is refused,
 * CUDA_ERROR_NOT_READY if the program's work did not end within `patience` us,
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a capture did not end; `action` has not run then.
 */
CUresult exclusively(struct client *client, uint64_t room, uint64_t pins, uint64_t patience,
                     CUresult (*action)(void *), void *argument);
