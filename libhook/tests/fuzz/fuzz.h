/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hook against a daemon, and against other programs, that may send anything. What stands in which file:
 *
 *   orders.c    one run: an input becomes orders, broken packets, hung up
 *               connections and calls of the program, then everything is put
 *               right and must come right (LLVMFuzzerTestOneInput)
 *   peer.c      the daemon's end of the connection
 *   program.c   the program: a thread that allocates, fills, compares, frees
 *   state.c     what must be true of the hook at any time
 *   sharing.c   another one run: an input becomes what visitors of the socket do where
 *               this process shares memory, and what an owner answers that lies
 *   visitors.c  those visitors, and an honest one
 *   liar.c      that owner, for the hook as importer
 *   random.c    main() where there is no libFuzzer: random inputs, always the same
 *
 * The socket and the card are in the folder NVSHARE_FUZZ_FOLDER, or one of their own.
 * The hook is linked in whole, but for its dlsym(); the driver is the simulated one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "nvshare/protocol.h"

#define MIB ((uint64_t)1 << 20)
#define CARD (256 * MIB)
#define MOST (96 * MIB)              /* that the program may allocate */
#define PATIENCE_MS 60000            /* for what takes milliseconds; machines that test are slow */

#define MUST(condition, ...) do {                                    \
        if (!(condition)) {                                          \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
            fprintf(stderr, __VA_ARGS__);                            \
            fputc('\n', stderr);                                     \
            abort();                                                 \
        }                                                            \
    } while (0)

struct input {
    const uint8_t *data;
    size_t size;
};

static inline uint64_t take(struct input *input, size_t bytes)
{
    uint64_t value = 0;
    for (; bytes > 0 && input->size > 0; bytes--, input->size--)
        value = value << 8 | *input->data++;
    return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Answers as a daemon does that has the whole card for this one program: what
 * the hook asks, while `right` is set; else it only checks and counts. */
void peer_listen(void);
void peer_accept(void);              /* waits for the hook to come, if it is not there */
void peer_send(const void *packet, size_t size);
void peer_hang_up(void);
void peer_read(bool right, int timeout_ms);    /* what is there, or the first to come */
void peer_introduce(bool right);     /* all orders so far are carried out when this returns */
void peer_put_right(void);           /* room, host memory and a turn for all it needs */
void peer_evict_all(void);           /* the card is somebody else's */

/* The calls a program makes, in order, on a thread of its own. */
void program_start(void);
void program_call(uint8_t what, uint8_t with); /* one more; left out if many wait already */
bool program_done(void);             /* all calls have returned */

void state_begin(void);              /* nothing is allocated yet */
void state_check(void);

/* Visitors of the socket where this process gives out what `ticket` means. */
struct ipc_ticket;
void visitors_step(const struct ipc_ticket *ticket, struct input *input);
void visitors_leave(void);
void visitors_fetch(const struct ipc_ticket *ticket, uint64_t bytes); /* an honest one has it all */

/* An owner that answers an import with one lie, or none; the import must fail, or succeed. */
void liar_step(struct input *input);
