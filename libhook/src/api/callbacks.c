/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the program that a stream calls pass the gate like work for the GPU. Between two
 * turns the service thread calls driver functions that wait for all work of a context
 * (driver/waits.def), and a host function may wait for a lock, such as Python's, of a thread that
 * waits at the gate. The same may delay a drain, which therefore asks how long a host function has
 * been running. In a capture the function becomes a node of a graph, of which this is not known. */
#include <stdlib.h>

#include "api/wrapper.h"
#include "flight/drain.h"

struct callback {
    union {
        CUhostFn plain;
        CUstreamCallback with_result;
    } function;
    void *data;
};

/* The driver calls this in place of the program's function. */
static void run(void *argument)
{
    struct callback callback = *(struct callback *)argument;
    free(argument);
    drain_callback_begins();
    callback.function.plain(callback.data);
    drain_callback_ends();
}

static void run_with_result(CUstream stream, CUresult result, void *argument)
{
    struct callback callback = *(struct callback *)argument;
    free(argument);
    drain_callback_begins();
    callback.function.with_result(stream, result, callback.data);
    drain_callback_ends();
}

/* NULL: the driver gets the program's own function, because `stream` is being captured, the driver
 * refuses the call anyway, or no memory is left. */
static struct callback *new_callback(CUstream stream, bool has_function, void *data)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    bool captured = REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status != CU_STREAM_CAPTURE_STATUS_NONE;
    struct callback *callback = captured || !has_function ? NULL : malloc(sizeof *callback);
    if (callback != NULL)
        callback->data = data;
    return callback;
}

#define CALLED_BACK(name, stream, member, runner, parameters)                      \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        gate_enter(stream);                                                        \
        struct callback *callback = new_callback(stream, p2 != NULL, p3);          \
        if (callback != NULL) {                                                    \
            callback->function.member = p2;                                        \
            p2 = runner;                                                           \
            p3 = callback;                                                         \
        }                                                                          \
        CUresult result = CALL(name, parameters);                                  \
        gate_leave();                                                              \
        if (result != CUDA_SUCCESS)                                                \
            free(callback);                                                        \
        return result;                                                             \
    }
#define CALLED_BACK_PTSZ(name, member, runner, parameters)                         \
    CALLED_BACK(name, p1, member, runner, parameters)                              \
    CALLED_BACK(name##_ptsz, PER_THREAD(p1), member, runner, parameters)

CALLED_BACK_PTSZ(cuLaunchHostFunc, plain, run, (CUstream, CUhostFn, void *))
CALLED_BACK_PTSZ(cuLaunchHostFunc_v2, plain, run, (CUstream, CUhostFn, void *, unsigned int))
CALLED_BACK_PTSZ(cuStreamAddCallback, with_result, run_with_result,
                 (CUstream, CUstreamCallback, void *, unsigned int))
