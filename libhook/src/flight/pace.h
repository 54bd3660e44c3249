/* SPDX-License-Identifier: Apache-2.0 */
/* Limits work in flight while other clients wait. For service threads, with service_lock held. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

/* To be called every few milliseconds while this client runs and other clients wait. */
void pace_step(struct client *client);
/* Lets `passes` passes of waiting threads through a gate closed by GATE_STOPPED of this client. */
void pace_let_through(struct client *client, uint64_t passes);
/* Ends pacing: no other client waits, or this client does not run any more. */
void pace_end(const struct client *client);
/* Whether threads may be waiting for pace_step(), so that it must be called soon. */
bool pace_pressing(const struct client *client);
/* Whether work has been in flight for PATIENCE_MOST_US (pace.c) without an end. */
bool pace_stalled(const struct client *client);
