/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is refused while a stream is being captured.
 *
 * Calls that might wait for captured work, or take effect now although the
 * program means them for every launch of the graph, the driver refuses, and it
 * breaks the captures that they endanger. Which those are depends on the mode of
 * each capture and on that of the thread that calls
 * (cuThreadExchangeStreamCaptureMode). Allocating and freeing are among them; what
 * stands in for them here, mapping and unmapping, the driver allows. So while a
 * capture is going on the driver is asked first, by the calling thread, with
 * a call that is refused in the same cases and neither waits nor changes anything:
 * whether a stream is done. It is a new one, as any other may be captured itself or
 * belong to another context. To make and to destroy one is always allowed. All as
 * measured on driver 580 (tests/simulator/conformance.txt).
 */
#include "client_state.h"
#include "real.h"

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    CUstream stream;
    *result = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (*result != CUDA_SUCCESS)     /* no context, or none that works: our caller finds out */
        return false;
    *result = REAL(cuStreamQuery)(stream);
    REAL(cuStreamDestroy_v2)(stream);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
