/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "blocks.h"

static struct {
    CUstream handle;
    CUcontext context;
    unsigned number;
} streams[STREAMS];
static unsigned made;

struct lane lane_sync(bool per_thread)
{
    return (struct lane){
        .per_thread = per_thread, .text = "null",
        .stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY,
    };
}

struct lane lane_any(void)
{
    struct lane lane = lane_sync(one_in(3));
    switch (roll(5)) {
    case 0:
        return lane;
    case 1:
        lane.handle = lane.stream = one_in(2) ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
        snprintf(lane.text, sizeof lane.text, "%s",
                 lane.handle == CU_STREAM_LEGACY ? "legacy" : "per-thread");
        return lane;
    default:
        return lane_own();
    }
}

struct lane lane_waiting(bool *waits)
{
    *waits = one_in(2);
    return *waits ? lane_sync(one_in(2)) : lane_any();
}

struct lane lane_own(void)
{
    struct lane lane = lane_sync(one_in(3));
    for (size_t tries = 0; tries < 2 * STREAMS; tries++) {
        size_t i = roll(STREAMS);
        if (streams[i].handle != NULL && streams[i].context == context) {
            lane.handle = lane.stream = streams[i].handle;
            snprintf(lane.text, sizeof lane.text, "s%u", streams[i].number);
            break;
        }
    }
    return lane;
}

void stream_made(void)
{
    size_t i = roll(STREAMS);
    unsigned flags = one_in(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    CUstream handle;
    if (streams[i].handle != NULL)
        return;
    CUresult result = one_in(3)
        ? DO(cuStreamCreateWithPriority, (&handle, flags, 0), "s%u, %u, 0", made + 1, flags)
        : DO(cuStreamCreate, (&handle, flags), "s%u, %u", made + 1, flags);
    if (result != CUDA_SUCCESS)
        return;
    streams[i].handle = handle;
    streams[i].context = context;
    streams[i].number = ++made;
}

static void destroy(size_t i)
{
    CUstream handle = streams[i].handle;
    EITHER(cuStreamDestroy, cuStreamDestroy_v2, (handle), "s%u", streams[i].number);
    streams[i].handle = NULL;
    /* The work goes on; a later user of such a block must wait for all streams. */
    for (size_t b = 0; b < BLOCKS; b++)
        if (blocks[b].stream == handle)
            blocks[b].stream = NULL;
}

void stream_destroyed(void)
{
    size_t i = roll(STREAMS);
    if (streams[i].handle == NULL || streams[i].context != context)
        return;
    if (one_in(2))
        wait_for(streams[i].handle);
    destroy(i);
}

void streams_begin(void)
{
    made = 0;
    for (int i = 0; i < 3; i++)
        stream_made();
}

/* Destroys the streams of the current context. */
void streams_end(void)
{
    for (size_t i = 0; i < STREAMS; i++)
        if (streams[i].handle != NULL && streams[i].context == context)
            destroy(i);
}

void streams_asked(void)
{
    struct lane lane = lane_any();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    unsigned flags = 77;
    CUevent first, second;
    float milliseconds;
    switch (roll(5)) {
    case 0: {
        CUresult result = DO(cuStreamQuery, (lane.handle), "%s", lane.text);
        if (result == CUDA_ERROR_NOT_READY || result == CUDA_SUCCESS)
            excuse_result(MAY_BE_READY);
        break;
    }
    case 1:
        DO(cuStreamGetFlags, (lane.handle, &flags), "%s", lane.text);
        tell(" flags=%u", flags);
        break;
    case 2:
        DO(cuStreamIsCapturing, (lane.handle, &status), "%s", lane.text);
        tell(" status=%d", (int)status);
        break;
    WHEN(3, wait_for(lane.stream))
    default:
        if (DO(cuEventCreate, (&first, 0), "%s", "timed") != CUDA_SUCCESS)
            break;
        DO(cuEventCreate, (&second, 0), "%s", "timed");
        DO(cuEventRecord, (first, lane.stream), "first, %s", lane.text);
        DO(cuEventRecord, (second, lane.stream), "second, %s", lane.text);
        if (DO(cuEventQuery, (second), "second") != CUDA_ERROR_ILLEGAL_ADDRESS)
            excuse_result(MAY_BE_READY);
        DO(cuEventSynchronize, (second), "second");
        DO(cuEventElapsedTime, (&milliseconds, first, second), "first, second");
        tell(" %s", milliseconds >= 0 ? "later" : "earlier");
        DO(cuEventDestroy_v2, (first), "first");
        DO(cuEventDestroy_v2, (second), "second");
    }
}
