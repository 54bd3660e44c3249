/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gives orders over a socket.
 *
 * Orders stop and move processes of all users, so the mode of the socket's file is not enough:
 * CAP_DAC_OVERRIDE, which root of a container has, passes it, and a user of a container may have the
 * daemon's number. The kernel's record of the process that connected decides.
 */
#pragma once
#include <stddef.h>

/* Returns NULL if the process at the other end of the descriptor may give orders, or why not, in
 * `words`. Anything but a socket was opened by whoever started this program. */
const char *caller_refusal(int descriptor, char *words, size_t size);
