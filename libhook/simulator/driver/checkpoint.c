/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of other processes (shared/shared_state.c). The driver does not block calls that
 * take no lock of its own; such a call of a checkpointed process fails or crashes (580 on an
 * H100). Here it aborts the process, so that a test notices. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver/device.h"
#include "driver/entry.h"

static CUresult answer(enum shared_step step)
{
    static const CUresult answers[] = {
        [SHARED_DONE] = CUDA_SUCCESS, [SHARED_NO_PROCESS] = CUDA_ERROR_NOT_INITIALIZED,
        [SHARED_WRONG_STATE] = CUDA_ERROR_ILLEGAL_STATE, [SHARED_TIMEOUT] = CUDA_ERROR_NOT_READY,
        [SHARED_REFUSED] = CUDA_ERROR_NOT_SUPPORTED,
        [SHARED_REFUSED_BEFORE] = CUDA_ERROR_UNKNOWN, [SHARED_UNPAIRED] = CUDA_ERROR_INVALID_VALUE,
        [SHARED_NO_MEMORY] = CUDA_ERROR_OUT_OF_MEMORY,
    };
    return answers[step];
}

/* A process cannot checkpoint itself: the call would wait for its own end. */
static bool is_other(int pid)
{
    return pid > 0 && pid != getpid();
}

static void copy(const uint64_t bytes[SHARED_GPUS], enum shared_direction direction)
{
    for (int gpu = 0; gpu < SHARED_GPUS; gpu++) {
        uint64_t ends = bytes[gpu] == 0 ? 0 : shared_copy_ends(gpu, direction, bytes[gpu]);
        struct timespec until = {.tv_sec = (time_t)(ends / 1000000000u),
                                 .tv_nsec = (long)(ends % 1000000000u)};
        if (ends != 0)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

GETTER(cuCheckpointProcessGetState, (int pid, CUprocessState *state), ENTRY_INIT, state,
       shared_life_of(pid) < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS,
       (CUprocessState)shared_life_of(pid))

API(cuCheckpointProcessGetRestoreThreadId, int pid, int *tid)
{
    ENTER(ENTRY_INIT);
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = shared_life_of(pid) < 0 ? NULL : opendir(path);
    FAIL_IF(threads == NULL || tid == NULL, CUDA_ERROR_NOT_INITIALIZED);
    *tid = 0;
    for (struct dirent *one; *tid == 0 && (one = readdir(threads)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", pid, one->d_name);
        FILE *file = fopen(path, "re");
        bool read = file != NULL && fgets(name, sizeof name, file) != NULL;
        if (read && strcmp(name, ENTRY_RESTORER "\n") == 0)
            *tid = atoi(one->d_name);
        if (file != NULL)
            fclose(file);
    }
    closedir(threads);
    return *tid != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

API(cuCheckpointProcessLock, int pid, CUcheckpointLockArgs *args)
{
    ENTER(ENTRY_INIT);
    return is_other(pid) ? answer(shared_lock_process(pid, args == NULL ? 0 : args->timeoutMs))
                         : CUDA_ERROR_INVALID_VALUE;
}

API(cuCheckpointProcessCheckpoint, int pid, CUcheckpointCheckpointArgs *args)
{
    ENTER(ENTRY_INIT);
    (void)args;
    uint64_t bytes[SHARED_GPUS] = {0};
    CUresult result = answer(shared_checkpoint(pid, bytes));
    copy(bytes, FROM_DEVICE);
    return result;
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
    CUresult result = answer(shared_restore(pid, to, bytes));
    copy(bytes, TO_DEVICE);
    return result;
}

API(cuCheckpointProcessUnlock, int pid, CUcheckpointUnlockArgs *args)
{
    ENTER(ENTRY_INIT);
    (void)args;
    return answer(shared_unlock_process(pid));
}
