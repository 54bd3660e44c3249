/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points that fill memory with a value, of every width and shape. */
#include "space/allocation.h"
#include "stream/capture.h"
#include "stream/submit.h"

static CUresult set(CUstream handle, CUdeviceptr address, size_t pitch, uint32_t value,
                    unsigned element, size_t width, size_t height, bool async)
{
    FIND_STREAM(handle);
    if (address % element != 0 || (height > 1 && pitch < width * element))
        return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    struct work work = {.kind = WORK_SET,
                        .set = {.address = address, .pitch = pitch, .value = value,
                                .element = element, .width = width, .height = height}};
    if (!range_is_valid(stream->context->device, address,
                        (height - 1) * pitch + width * element))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    if (!async && stream->capture != NULL)
        result = capture_forbids_stream(stream);
    if (result == CUDA_SUCCESS)
        result = stream_submit(stream, &work);
    return result;
}

/* For one width: a line and a plane, each with and without a stream. */
#define SET(bits, type, element)                                                         \
    API_PTDS(cuMemsetD##bits##_v2, (CUdeviceptr address, type value, size_t count),      \
             return set(on, address, 0, value, element, count, 1, false);)               \
    API_PTDS(cuMemsetD2D##bits##_v2, (CUdeviceptr address, size_t pitch, type value,     \
                                      size_t width, size_t height),                      \
             return set(on, address, pitch, value, element, width, height, false);)      \
    API_PTSZ(cuMemsetD##bits##Async, (CUdeviceptr address, type value, size_t count,     \
                                      CUstream stream),                                  \
             return set(on, address, 0, value, element, count, 1, true);)                \
    API_PTSZ(cuMemsetD2D##bits##Async, (CUdeviceptr address, size_t pitch, type value,   \
                                        size_t width, size_t height, CUstream stream),   \
             return set(on, address, pitch, value, element, width, height, true);)

SET(8, unsigned char, 1)
SET(16, unsigned short, 2)
SET(32, unsigned int, 4)
