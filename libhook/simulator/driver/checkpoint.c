/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of other processes (shared/shared_state.c). The driver does not block calls that
 * take no lock of its own; such a call of a checkpointed process fails or crashes (580 on an
 * H100). Here it aborts the process, so that a test notices. A restore for which the GPU has too
 * little free memory is the last that the driver tries: each later one fails. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/device.h"
#include "driver/entry.h"

static void copy(const uint64_t bytes[SHARED_GPUS], enum shared_direction direction)
{
    for (int gpu = 0; gpu < SHARED_GPUS; gpu++)
        if (bytes[gpu] != 0)
            wait_for_copy(gpu, direction, bytes[gpu]);
}

GETTER(cuCheckpointProcessGetState, (int pid, CUprocessState *state), ENTRY_INIT, state,
       shared_life_of(pid) < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS,
       (CUprocessState)shared_life_of(pid))

API(cuCheckpointProcessLock, int pid, CUcheckpointLockArgs *args)
{
    ENTER(ENTRY_INIT);
    /* A process cannot checkpoint itself: the call would wait for its own end. */
    FAIL_IF(pid <= 0 || pid == getpid(), CUDA_ERROR_INVALID_VALUE);
    return shared_lock_process(pid, args == NULL ? 0 : args->timeoutMs);
}

API(cuCheckpointProcessCheckpoint, int pid, CUcheckpointCheckpointArgs *args)
{
    ENTER(ENTRY_INIT);
    (void)args;
    uint64_t bytes[SHARED_GPUS] = {0};
    TRY(shared_checkpoint(pid, bytes));
    copy(bytes, FROM_DEVICE);
    return CUDA_SUCCESS;
}

static int gpu_of(const CUuuid *uuid)
{
    for (int gpu = 0; gpu < shared_gpus(); gpu++) {
        unsigned char known[16];
        shared_uuid(gpu, known);
        if (memcmp(known, uuid->bytes, sizeof known) == 0)
            return gpu;
    }
    return -1;
}

API(cuCheckpointProcessRestore, int pid, CUcheckpointRestoreArgs *args)
{
    ENTER(ENTRY_INIT);
    unsigned pairs = args == NULL ? 0 : args->gpuPairsCount;
    int to[SHARED_GPUS];
    for (int gpu = 0; gpu < SHARED_GPUS; gpu++)
        to[gpu] = pairs == 0 ? gpu : -1;
    for (unsigned i = 0; i < pairs; i++) {
        int from = gpu_of(&args->gpuPairs[i].oldUuid), next = gpu_of(&args->gpuPairs[i].newUuid);
        FAIL_IF(from < 0 || next < 0, CUDA_ERROR_INVALID_VALUE);
        to[from] = next;
    }
    for (int gpu = 0; gpu < shared_gpus(); gpu++)
        if (to[gpu] < 0)                /* as driver 580 refuses, whichever GPUs the process uses */
            return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes[SHARED_GPUS] = {0};
    TRY(shared_restore(pid, to, bytes));
    copy(bytes, TO_DEVICE);
    return CUDA_SUCCESS;
}

FORWARD(cuCheckpointProcessUnlock,
        (int pid, CUcheckpointUnlockArgs *args __attribute__((unused))), ENTRY_INIT,
        shared_unlock_process(pid))
