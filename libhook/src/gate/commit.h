/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's grants to a client. All functions are called with memory_lock held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct nvshare_limits;

/* Waits, releasing the lock meanwhile, until allocated + pinned + pending may grow by `bytes`.
 * False: refused. */
bool client_commit(struct client *client, uint64_t bytes);
/* The same for memory of which `pins` bytes will be pinned. The daemon counts them as pinned until
 * this thread calls client_settle(), when the figures contain them, or never will. Waits for freed
 * memory until `until` (us) at the latest. */
bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins, uint64_t until);
uint64_t client_patience_ends(void);               /* `until`, for a call that begins now */
void client_settle(void);
/* The answer to this question has arrived, or will not arrive (NULL). Earlier questions are
 * void. */
void client_hears(struct client *client, uint64_t number, const struct nvshare_limits *answer);
/* A part of the reason for the next refusal, from a REASON. */
void client_hears_reason(struct client *client, const char *text, size_t size);
uint64_t client_to_pin(const struct client *client);    /* for the record */
/* Gives up grants of threads that have ended or left the call. Returns the us until the next can be
 * given up; NEVER: no grant is unused. */
int64_t client_give_up(struct client *client);
/* The same for the client's memory beyond the card: true if that may grow by `bytes`, which then
 * count. */
bool client_go_beyond(struct client *client, uint64_t bytes);
