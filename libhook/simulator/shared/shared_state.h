/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of the simulated GPUs that all processes of a user share: how much memory each process
 * holds on each GPU, exported allocations, and when the copy engines are idle again. It is a file
 * that every process maps.
 *
 * All figures of a process are in one slot, and sums are never stored. A process that is killed at
 * any moment therefore leaves only its slot behind, which the next process to read the state
 * recognises and clears.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "nvshare/cuda_types.h"

#define SHARED_GPUS 16
#define SHARED_PROCESSES 512

enum shared_direction { TO_DEVICE, FROM_DEVICE, TO_PEER, FROM_PEER, DIRECTIONS };

struct shared_usage {                /* memory and contexts of one process on one GPU */
    pid_t pid;
    uint64_t bytes;
};

/* Maps the file, and creates it if necessary. False: errno has the reason. May be called
 * repeatedly. */
bool shared_open(void);

uint64_t shared_serial(void);        /* unlike that of any other folder; after shared_open() */

int shared_gpus(void);
uint64_t shared_total(int gpu);      /* bytes of physical memory */
uint64_t shared_used(int gpu);       /* bytes held by processes that still run */

/* Takes bytes of a GPU's memory for this process. False: the GPU has fewer free bytes. */
bool shared_take(int gpu, uint64_t bytes);
void shared_give_back(int gpu, uint64_t bytes);

/* Adds `change` (+1 or -1) to this process's number of contexts on the GPU. */
void shared_count_context(int gpu, int change);

/* Exported memory counts once, as long as a process holds it or a descriptor made by
 * shared_descriptor() is open, including one in transit through a socket. `publish` moves
 * `bytes` of this process to a new id and returns it; 0: too many exports. `join` makes this
 * process a holder, too. */
uint64_t shared_publish(int gpu, uint64_t bytes);
bool shared_join(uint64_t id);
void shared_leave(uint64_t id);
/* shared_file(): the file with the bytes, created for the `first` holder. shared_descriptor(): a
 * descriptor for other processes. -1: failed. */
int shared_file(uint64_t id, bool first);
int shared_descriptor(uint64_t id);

/* Stores at most `room` processes that have a context on the GPU; returns how many there are. */
int shared_users(int gpu, struct shared_usage *users, int room);

/* When a copy of `bytes` that starts now ends (ns of CLOCK_MONOTONIC): copies in one direction
 * of a GPU follow one another. 0: not limited. */
uint64_t shared_copy_ends(int gpu, enum shared_direction direction, uint64_t bytes);

/* Time for which kernels have run on the GPU, in ns since the file was created. */
void shared_add_busy(int gpu, uint64_t nanoseconds);
uint64_t shared_busy(int gpu);

enum shared_life { SHARED_RUNS, SHARED_LOCKED, SHARED_CHECKPOINTED };

/* Called around each outermost call of the driver. A call that takes the driver's lock waits while
 * this process is locked; a call of a checkpointed process aborts it. */
void shared_call_begins(bool takes_lock);
void shared_call_ends(void);

/* Records that this process has had managed memory and can no longer be checkpointed. */
void shared_has_managed(void);
int shared_life_of(pid_t pid);       /* enum shared_life; -1: no such process */
/* The results of the following functions:
 *   NOT_INITIALIZED   no visible process with this pid uses a GPU
 *   ILLEGAL_STATE     the process is in another state
 *   NOT_READY         a thread does not leave its call; the process runs on
 *   NOT_SUPPORTED     the process shares memory, or has had managed memory; UNKNOWN: refused again
 *                     because of managed memory
 *   INVALID_VALUE     `to` has no entry for a GPU that the process uses
 *   OUT_OF_MEMORY     too little on the new GPUs; the process is still checkpointed */
CUresult shared_lock_process(pid_t pid, unsigned timeout_ms);     /* 0: no timeout */
CUresult shared_unlock_process(pid_t pid);
/* Release and retake all GPU memory of the process. `bytes`: amount on each GPU. `to`: the new GPU
 * in place of each GPU; -1: no new GPU. */
CUresult shared_checkpoint(pid_t pid, uint64_t bytes[SHARED_GPUS]);
CUresult shared_restore(pid_t pid, const int to[SHARED_GPUS], uint64_t bytes[SHARED_GPUS]);
/* The GPU used in place of `gpu` after a restore. All functions take the index before a restore. */
int shared_actual(int gpu);

uint64_t monotonic_nanoseconds(void);

/* The GPU's UUID, the same in libcuda and libnvidia-ml. */
void shared_uuid(int gpu, unsigned char uuid[16]);
void shared_uuid_text(int gpu, char text[41]);       /* "GPU-" and the hexadecimal digits */
#define SHARED_GPU_NAME "NVIDIA Simulated GPU"
static inline unsigned shared_pci_bus(int gpu) { return 0x17u + (unsigned)gpu; }

/* The simulated driver: NVSHARE_SIM_DRIVER names its branch, such as 550; unset: the newest. */
const char *driver_version(void);
int driver_cuda_version(void);       /* the newest supported version of CUDA, as returned by
                                        cuDriverGetVersion */

/* The size in the variable, which may end in K, M, G or T, in bytes; `otherwise` if unset. A value
 * that is no size ends the process with a message. */
uint64_t size_setting(const char *name, uint64_t otherwise);
