/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knows whether any stream is being captured, and what the driver refuses meanwhile.
 *
 * The driver refuses calls that might wait for captured work, or that take effect now although the
 * program means them for every launch of the graph; and it breaks the captures that they endanger.
 * Which calls depends on the mode of each capture and of the calling thread
 * (cuThreadExchangeStreamCaptureMode). Allocating and freeing are among them, but the mapping and
 * unmapping that we do instead are not. So while a capture goes on, the calling thread first asks
 * the driver with a call of the same kind: to free nothing. The driver refuses that where it would
 * refuse the program's call, and does nothing otherwise (measured on driver 580, in all modes).
 */
#include "flight/capture.h"

#include "driver/ops.h"
#include "flight/before_capture.h"

/* Protects `captures`, which may be read without, and before_capture.c. Held across driver calls
 * that return at once; nothing else is locked by its holder but the lists of streams and contexts. */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned captures;

void capture_begins(void)
{
    LOCKED(capture_lock);
    if (captures == 0)
        before_capture_record();
    captures++;
}

void capture_ends(void)
{
    LOCKED(capture_lock);
    if (--captures == 0)
        before_capture_drop();
}

bool capture_going_on(void)
{
    return captures > 0;
}

bool capture_forbid(bool whatever)
{
    if (locked_here(&capture_lock))
        return false;                /* the driver has called back: see client_is_called_back() */
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

void capture_leave_context(CUcontext context)
{
    LOCKED(capture_lock);
    before_capture_forget(context);
}

bool capture_alone(void)
{
    if (captures == 0 || locked_here(&capture_lock))
        return false;
    LOCKED(capture_lock);
    return captures > 0 && before_capture_is_over();
}

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    *result = REAL(cuMemFree_v2)(0);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
