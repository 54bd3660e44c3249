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
 * a call of the same kind: to free nothing. That is refused where they are, and does
 * nothing where they are not (measured on driver 580, in all modes).
 */
#include "client/client.h"
#include "client/client_state.h"
#include "interpose/real.h"

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    *result = REAL(cuMemFree_v2)(0);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
