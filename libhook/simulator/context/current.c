/* SPDX-License-Identifier: Apache-2.0 */
#include "context/current.h"

#include <stdlib.h>

#include "stream/capture.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "engine/stream.h"

#define DEPTH 64

/* A thread's stream in one context, told apart by the context's id: a primary
 * context that was reset is another one at the same address. */
struct own_stream {
    struct own_stream *next;
    struct context *context;
    unsigned long long id;
    struct stream *stream;
};

static __thread struct {
    struct context *stack[DEPTH];
    int depth;                       /* the last one is current; NULL may be */
    struct own_stream *streams;
} self;

static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;

static void thread_ends(void *list)
{
    pthread_mutex_lock(&engine_lock);
    for (struct own_stream *own = list, *next; own != NULL; own = next) {
        next = own->next;
        bool same = atomic_load(&own->context->alive) && own->context->id == own->id;
        if (same && !own->stream->destroyed)
            stream_close(own->stream);
        free(own);
    }
    pthread_mutex_unlock(&engine_lock);
}

static void make_key(void)
{
    if (pthread_key_create(&ending, thread_ends) != 0)
        abort();
}

struct stream *current_stream(struct context *context)
{
    pthread_once(&ending_once, make_key);
    for (struct own_stream *own = self.streams; own != NULL; own = own->next)
        if (own->context == context && own->id == context->id)
            return own->stream;
    struct own_stream *own = calloc(1, sizeof *own);
    struct stream *stream = own != NULL ? stream_make(context, CU_STREAM_DEFAULT, 0) : NULL;
    if (stream == NULL)
        abort();
    stream->per_thread = true;
    *own = (struct own_stream){self.streams, context, context->id, stream};
    self.streams = own;
    pthread_setspecific(ending, own);
    return stream;
}

struct context *context_current(void)
{
    return self.depth > 0 ? self.stack[self.depth - 1] : NULL;
}

void current_push(struct context *context)
{
    if (self.depth == DEPTH)
        abort();
    self.stack[self.depth++] = context;
}

void current_pop(void)
{
    if (self.depth > 0)
        self.depth--;
}

static CUresult push(CUcontext handle)
{
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    current_push((struct context *)handle);
    return CUDA_SUCCESS;
}

API(cuCtxPushCurrent, CUcontext context)
{
    ENTER(ENTRY_INIT);
    return push(context);
}

API(cuCtxPushCurrent_v2, CUcontext context)
{
    ENTER(ENTRY_INIT);
    return push(context);
}

static CUresult pop(CUcontext *handle)
{
    if (self.depth == 0 || context_current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != NULL)
        *handle = (CUcontext)context_current();
    current_pop();
    return CUDA_SUCCESS;
}

API(cuCtxPopCurrent, CUcontext *context)
{
    ENTER(ENTRY_INIT);
    return pop(context);
}

API(cuCtxPopCurrent_v2, CUcontext *context)
{
    ENTER(ENTRY_INIT);
    return pop(context);
}

/* Takes the place of the top of the stack; NULL removes it. */
API(cuCtxSetCurrent, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    if (handle != NULL && !object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    current_pop();
    if (handle != NULL)
        current_push((struct context *)handle);
    return CUDA_SUCCESS;
}

API(cuCtxGetCurrent, CUcontext *handle)
{
    ENTER(ENTRY_INIT);
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

API(cuCtxGetDevice, CUdevice *device)
{
    ENTER(ENTRY_INIT);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (context_current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context_current()->device->ordinal;
    return CUDA_SUCCESS;
}

API(cuCtxGetDevice_v2, CUdevice *device, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    struct context *context = context_from(handle);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

/* Waits for everything in the context; a capture in it is broken by that. */
static CUresult synchronize(struct context *context)
{
    pthread_mutex_lock(&engine_lock);
    CUresult result = capture_forbids_context(context);
    if (result == CUDA_SUCCESS)
        result = context_wait(context);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

API(cuCtxSynchronize, void)
{
    ENTER(ENTRY_CONTEXT);
    return synchronize(context_current());
}

API(cuCtxSynchronize_v2, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    struct context *context = context_from(handle);
    CUresult result = context_check(context);
    return result == CUDA_SUCCESS ? synchronize(context) : result;
}
