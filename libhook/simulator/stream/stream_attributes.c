/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of streams. Only the priority means anything here, and orders nothing. */
#include <string.h>

#include "driver/entry.h"
#include "stream/submit.h"

static bool is_attribute(CUstreamAttrID attribute)
{
    return attribute == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        || attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
        || attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY
        || attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
        || attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

static CUresult get(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || !is_attribute(attribute))
        return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof *value);
    pthread_mutex_lock(&engine_lock);
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value->priority = stream->priority;
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

static CUresult set(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || !is_attribute(attribute))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        stream->priority = value->priority > 0 ? 0 : value->priority < -5 ? -5 : value->priority;
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

static CUresult copy(CUstream to_handle, CUstream from_handle)
{
    struct stream *to, *from;
    CUresult result = stream_from(to_handle, context_current(), &to);
    if (result == CUDA_SUCCESS)
        result = stream_from(from_handle, context_current(), &from);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&engine_lock);
    to->priority = from->priority;
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

#define DEFAULT(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

API_PTSZ(cuStreamGetAttribute,
         (CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value),
         return get(on, attribute, value);)

API_PTSZ(cuStreamSetAttribute,
         (CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value),
         return set(on, attribute, value);)

API(cuStreamCopyAttributes, CUstream to, CUstream from)
{
    ENTER(ENTRY_CONTEXT);
    return copy(to, from);
}

API(cuStreamCopyAttributes_ptsz, CUstream to, CUstream from)
{
    ENTER(ENTRY_CONTEXT);
    return copy(DEFAULT(to), DEFAULT(from));
}
