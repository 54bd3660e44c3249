/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/captures.h"

#include "driver/context.h"

struct captures captures;

/* The address of this variable identifies a thread. */
__thread CUstreamCaptureMode capture_thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult capture_prohibits(void)
{
    if (atomic_load(&captures.count) == 0 || capture_thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    LOCKED(engine_lock);
    for (struct capture *capture = captures.list; capture != NULL; capture = capture->next) {
        bool own = capture->thread == &capture_thread_mode
            && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool others = capture_thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL
            && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!own && !others)
            continue;
        capture->broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

struct capture *capture_numbered(unsigned long long id)
{
    struct capture *capture = captures.list;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}
