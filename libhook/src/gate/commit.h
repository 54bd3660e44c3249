/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon has granted a client. All functions are called with memory_lock held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct nvshare_limits;

/* Waits, releasing the lock meanwhile, until allocated + pinned + pending
 * may grow by `bytes`. False: refused. */
bool client_commit(struct client *client, uint64_t bytes);
/* The same if then `pins` more bytes will be pinned, which count as that for the daemon until this
 * thread calls client_settle(): as soon as the figures say so, or never will. For memory that the
 * program has freed it waits until `until` at the latest, us. */
bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins, uint64_t until);
uint64_t client_patience_ends(void);               /* `until`, for a call that begins now */
void client_settle(void);
/* The answer to this question has come, or none will: NULL. Those before it are void. */
void client_hears(struct client *client, uint64_t number, const struct nvshare_limits *answer);
/* A part of why the next answer refuses, as a REASON has it. */
void client_hears_reason(struct client *client, const char *text, size_t size);
uint64_t client_to_pin(const struct client *client);    /* as the record says it */
/* Gives up what was granted to threads that have gone elsewhere. Returns in how many us
 * there is more of that; NEVER: nothing is granted. */
int64_t client_give_up(struct client *client);
/* The same of what the client has beyond the card: true if it may have `bytes`
 * more of that, which then count. */
bool client_go_beyond(struct client *client, uint64_t bytes);
