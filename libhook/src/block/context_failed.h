/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;

/* Something could not be moved. If that is because the context has failed for good, all of the
 * client's memory goes. What is on the move has failed as well, and goes when that is answered.
 * Service thread, with memory_lock held. */
void release_if_context_failed(struct client *client);
