/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether any stream is being captured, and what is refused meanwhile.
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
#include "flight/capture.h"

/* Protects `captures`, which may be read without. Held across driver calls that
 * return at once; nothing else is locked by its holder. */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned captures;

void capture_begins(void)
{
    LOCKED(capture_lock);
    captures++;
}

void capture_ends(void)
{
    LOCKED(capture_lock);
    captures--;
}

bool capture_going_on(void)
{
    return captures > 0;
}

bool capture_forbid(bool whatever)
{
    pthread_mutex_lock(&capture_lock);
    if (captures == 0 || whatever)
        return true;
    pthread_mutex_unlock(&capture_lock);
    return false;
}

void capture_allow(void)
{
    pthread_mutex_unlock(&capture_lock);
}

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    *result = REAL(cuMemFree_v2)(0);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
