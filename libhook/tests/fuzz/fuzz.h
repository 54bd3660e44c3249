/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzing of the hook: a daemon, and other programs, that send arbitrary input.
 *
 *   orders.c    one run for the daemon (LLVMFuzzerTestOneInput): the input becomes orders,
 *               malformed packets, closed connections and calls of the program; then the daemon
 *               sends valid orders, and the state must be valid
 *   peer.c      the daemon's end of the connection
 *   program.c   a thread that allocates, fills, compares and frees memory
 *   state.c     invariants of the hook
 *   sharing.c   one run for memory shared between processes: the input becomes messages of clients
 *               to the process's IPC socket, and the answers of a lying exporter
 *   visitors.c  those clients, and an honest one
 *   liar.c      that exporter, for the hook as importer
 *   random.c    main() without libFuzzer: pseudo-random inputs, the same in every run
 *
 * The socket and the state of the GPU are in the folder NVSHARE_FUZZ_FOLDER, or in a new one. The
 * whole hook except its dlsym() is linked in; the driver is the simulated one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "nvshare/cuda_types.h"
#include "nvshare/protocol.h"

#define MIB ((uint64_t)1 << 20)
#define CARD (256 * MIB)
#define MOST (96 * MIB)              /* bytes that the program may allocate */
#define PATIENCE_MS 60000            /* for operations that take milliseconds on an idle machine */

#define MUST(condition, ...) do {                                    \
        if (!(condition)) {                                          \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
            fprintf(stderr, __VA_ARGS__);                            \
            fputc('\n', stderr);                                     \
            abort();                                                 \
        }                                                            \
    } while (0)

static inline void succeed(CUresult result, const char *what)
{
    MUST(result == CUDA_SUCCESS, "%s: error %d", what, (int)result);
}

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

/* A daemon that grants the whole GPU to this program. While `right` is set it answers the hook's
 * requests; otherwise it only validates and counts the reports. */
void peer_listen(void);              /* also sets the variables of the simulated GPU */
void peer_accept(void);              /* waits until the hook is connected */
void peer_send(const void *packet, size_t size);
void peer_send_order(const struct nvshare_order *order);
void peer_hang_up(void);
void peer_read(bool right, int timeout_ms);    /* reads pending reports, or waits for the first
                                                  one */
void peer_introduce(bool right);     /* returns when the hook has carried out all orders sent so
                                        far */
void peer_put_right(void);           /* grants all room, host memory and a turn that the program
                                        needs */
void peer_evict_all(void);           /* evicts all memory of the program */

/* Sends a packet with `count` descriptors, at most FILES_MAX. False: the receiver is gone. */
#define FILES_MAX 5
bool peer_send_files(int socket, void *packet, size_t size, const int *files, size_t count);

/* The program's calls, executed in order by a thread of its own. */
void program_start(void);
void program_enter(CUresult (*retain)(CUcontext *, CUdevice)); /* makes the primary context current */
size_t card_in_use(void);            /* bytes of the GPU that all processes use */
void compare_words(CUdeviceptr address, size_t size, unsigned value); /* each word must be `value` */
void program_call(uint8_t what, uint8_t with); /* queues one call; dropped if too many are queued */
void program_run(void (*act)(void)); /* queues a function of the test */
void program_finish(void);           /* returns when all calls have returned, for which the daemon
                                        answers */

void state_begin(void);              /* to be called before the program allocates memory */
void state_check(void);

/* Clients of the IPC socket at which this process exports the memory of `ticket`. */
struct ipc_ticket;
void visitors_step(const struct ipc_ticket *ticket, struct input *input);
void visitors_leave(void);
void visitors_fetch(const struct ipc_ticket *ticket, uint64_t bytes); /* an honest client imports
                                                                         all parts */

/* An exporter that answers an import with one false value, or with none; the import must fail,
 * or succeed. */
void liar_step(struct input *input);
