/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches. A launch into a stream that is being captured is recorded, not submitted, and does not
 * wait: a kernel's arguments are only bytes to the driver.
 *
 * Host functions and callbacks (cuLaunchHostFunc, cuStreamAddCallback) are no work for the GPU and
 * pass by; a stream may need them to become empty.
 */
#include "api/loading.h"

GATED_LOADING_PTSZ(cuLaunchKernel, stream,
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
     void **extra),
    (f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
GATED_LOADING_PTSZ(cuLaunchCooperativeKernel, stream,
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters),
    (f, gx, gy, gz, bx, by, bz, shared, stream, parameters))
GATED_LOADING(cuLaunchKernelEx, config == NULL ? NULL : config->hStream,
    (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),
    (config, f, parameters, extra))
GATED_LOADING(cuLaunchKernelEx_ptsz, config == NULL ? NULL : PER_THREAD(config->hStream),
    (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),
    (config, f, parameters, extra))
GATED_LOADING(cuLaunchCooperativeKernelMultiDevice, GATE_NO_STREAM,
    (CUDA_LAUNCH_PARAMS *launches, unsigned int devices, unsigned int flags),
    (launches, devices, flags))

/* Both functions count as work: other processes and graphics may wait for a signal, and a wait
 * keeps its stream from becoming empty. */
GATED_PTSZ(cuSignalExternalSemaphoresAsync, stream,
    (const CUexternalSemaphore *semaphores,
     const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *parameters, unsigned int count, CUstream stream),
    (semaphores, parameters, count, stream))
GATED_PTSZ(cuWaitExternalSemaphoresAsync, stream,
    (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters,
     unsigned int count, CUstream stream),
    (semaphores, parameters, count, stream))

/* Launch functions of CUDA 3. */
GATED_LOADING(cuLaunch, GATE_NO_STREAM, (CUfunction f), (f))
GATED_LOADING(cuLaunchGrid, GATE_NO_STREAM, (CUfunction f, int width, int height), (f, width, height))
GATED_LOADING(cuLaunchGridAsync, stream,
    (CUfunction f, int width, int height, CUstream stream),
    (f, width, height, stream))
