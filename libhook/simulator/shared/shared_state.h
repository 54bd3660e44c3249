/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated GPUs of a user have in common between processes: how
 * much memory each process holds on each, exported allocations, and when the
 * copy engines are free again. It lies in a file that every process maps.
 *
 * All figures of a process stand in one slot, and sums are never stored. So a
 * process that is killed in the middle of anything takes nothing with it but
 * its slot, which the next one to look finds ownerless and clears.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SHARED_GPUS 16
#define SHARED_PROCESSES 512

enum shared_direction { TO_DEVICE, FROM_DEVICE, TO_PEER, FROM_PEER, DIRECTIONS };

struct shared_usage {                /* one process on one GPU */
    pid_t pid;
    uint64_t bytes;
};

/* Maps the file, creating it if need be. False with errno if that fails.
 * Harmless when repeated. */
bool shared_open(void);

int shared_gpus(void);
uint64_t shared_total(int gpu);      /* bytes of physical memory */
uint64_t shared_used(int gpu);       /* bytes held by living processes */

/* Takes bytes of a GPU's memory for this process; false if there are not as many. */
bool shared_take(int gpu, uint64_t bytes);
void shared_give_back(int gpu, uint64_t bytes);

/* This process has one context more (+1) or less (-1) on the GPU. */
void shared_count_context(int gpu, int change);

/* Exported memory is counted once, for as long as any process holds it, or anybody has an open
 * descriptor that shared_descriptor() made, be it on its way through a socket. `publish` moves `bytes` that this process has taken under a new id, 0 if
 * there are too many. `join` makes this process a holder too. */
uint64_t shared_publish(int gpu, uint64_t bytes);
bool shared_join(uint64_t id);
void shared_leave(uint64_t id);
/* The file with its bytes, made by the first, and a descriptor for others; -1 if that fails. */
int shared_file(uint64_t id, bool first);
int shared_descriptor(uint64_t id);

/* Processes with a context on the GPU, at most `room`; returns how many there are. */
int shared_users(int gpu, struct shared_usage *users, int room);

/* When the copy of `bytes` that starts now will have ended, in nanoseconds of
 * CLOCK_MONOTONIC: copies in one direction of a GPU take their turns, whoever
 * asks. 0 if the rate is not limited. */
uint64_t shared_copy_ends(int gpu, enum shared_direction direction, uint64_t bytes);

/* Time in which kernels ran on the GPU, in nanoseconds since the file was made. */
void shared_add_busy(int gpu, uint64_t nanoseconds);
uint64_t shared_busy(int gpu);

/*
 * Checkpoints of processes, by other processes.
 */

enum shared_life { SHARED_RUNS, SHARED_LOCKED, SHARED_CHECKPOINTED };
enum shared_step {
    SHARED_DONE,
    SHARED_NO_PROCESS,               /* that uses a GPU, as far as this one can see */
    SHARED_WRONG_STATE,
    SHARED_TIMEOUT,                  /* a thread stays within a call; the process runs on */
    SHARED_REFUSED,                  /* it shares memory with other processes, or has had managed */
    SHARED_REFUSED_BEFORE,           /* the latter, once that was said */
    SHARED_UNPAIRED,                 /* nothing says on which card to restore a part of it */
    SHARED_NO_MEMORY,                /* there; it is checkpointed as before */
};

/* Around each outermost call of the driver: waits while this process is locked, if the call takes the
 * driver's lock, and ends the process if it is checkpointed, as the driver crashes then. */
void shared_call_begins(bool takes_lock);
void shared_call_ends(void);

/* This process has managed memory, so it is checkpointed no more. */
void shared_has_managed(void);
int shared_life_of(pid_t pid);       /* enum shared_life; -1: no such process */
enum shared_step shared_lock_process(pid_t pid, unsigned timeout_ms);     /* 0: no timeout */
enum shared_step shared_unlock_process(pid_t pid);
/* Takes all of the cards' memory from it, and gives it back. `bytes`: of each card. `to`: for each
 * card that it was on, the card that it is on from now on; -1: none. */
enum shared_step shared_checkpoint(pid_t pid, uint64_t bytes[SHARED_GPUS]);
enum shared_step shared_restore(pid_t pid, const int to[SHARED_GPUS], uint64_t bytes[SHARED_GPUS]);
/* The card on which this process has what it began on `gpu`. Each function here is told the latter. */
int shared_actual(int gpu);

uint64_t monotonic_nanoseconds(void);

/* The GPU's identity, the same for libcuda and libnvidia-ml. */
void shared_uuid(int gpu, unsigned char uuid[16]);
void shared_uuid_text(int gpu, char text[41]);       /* "GPU-" and the digits */
#define SHARED_GPU_NAME "NVIDIA Simulated GPU"
static inline unsigned shared_pci_bus(int gpu) { return 0x17u + (unsigned)gpu; }

/* An environment variable in bytes, with K, M, G or T after it; `otherwise` if
 * unset. A value that is no size ends the process with a sentence on stderr. */
uint64_t size_setting(const char *name, uint64_t otherwise);
