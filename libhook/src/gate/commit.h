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
/* As client_commit(), for memory of which `pins` bytes will be pinned. The daemon counts these
 * bytes as pinned until this thread calls client_settle(): once the figures contain them, or when
 * they will not be pinned. `until`: deadline in us of waits for freed memory. */
bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins, uint64_t until);
uint64_t client_patience_ends(void);               /* `until`, for a call that begins now */
void client_settle(void);
/* Records the answer to COMMIT `number`; NULL: it will not arrive. Earlier COMMITs without a grant
 * are void. */
void client_commit_answered(struct client *client, uint64_t number,
                            const struct nvshare_limits *answer);
/* Appends the text of a REASON to the reason for the next refusal. */
void client_append_refusal(struct client *client, const char *text, size_t size);
uint64_t client_to_pin(const struct client *client);    /* `to_pin` of a report */
/* Gives up grants of threads that have ended or left the call. Returns the us until the next can be
 * given up; NEVER: no grant is unused. */
int64_t client_expire_grants(struct client *client);
/* Waits until the daemon grants or refuses that memory.beyond grows by `bytes`. True: granted, and
 * added to memory.beyond. */
bool client_go_beyond(struct client *client, uint64_t bytes);
