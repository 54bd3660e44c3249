/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "gate/client.h"

/*
 * Runs `action` while nothing of the program runs on the card or may be
 * submitted, all its memory is there and none of it moves, and the card has
 * `room` more bytes for it to use, `pins` of which may be pinned afterwards, or
 * of its memory in their stead. The client's copy stream may be used, and
 * its context is current. Called with memory_lock held, released meanwhile and
 * held again in `action`.
 *
 * Returns what `action` returns; CUDA_ERROR_OUT_OF_MEMORY if the room is
 * refused, CUDA_ERROR_NOT_READY if the program's work did not end within
 * `patience` us, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a capture did not,
 * none of them having run it.
 */
CUresult exclusively(struct client *client, uint64_t room, uint64_t pins, uint64_t patience,
                     CUresult (*action)(void *), void *argument);
