/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/submit.h"

#include <stdlib.h>

#include "driver/object.h"
#include "stream/capture.h"

/* A thread's default stream in a context, found by the context's id: a primary context gets a new
 * id when it is reset. */
struct own_stream {
    struct own_stream *next;
    struct context *context;
    unsigned long long id;
    struct stream *stream;
};

static __thread struct own_stream *own_streams;
static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;

static void thread_ends(void *list)
{
    LOCKED(engine_lock);
    for (struct own_stream *own = list, *next; own != NULL; own = next) {
        next = own->next;
        bool same = atomic_load(&own->context->alive) && own->context->id == own->id;
        if (same && !own->stream->destroyed)
            stream_close(own->stream);
        free(own);
    }
}

static void make_key(void)
{
    if (pthread_key_create(&ending, thread_ends) != 0)
        abort();
}

/* The stream CU_STREAM_PER_THREAD of this thread, created at its first use. */
static struct stream *own_stream(struct context *context)
{
    pthread_once(&ending_once, make_key);
    for (struct own_stream *own = own_streams; own != NULL; own = own->next)
        if (own->context == context && own->id == context->id)
            return own->stream;
    struct own_stream *own = checked(calloc(1, sizeof *own));
    struct stream *stream = stream_make(context, CU_STREAM_DEFAULT, 0);
    stream->per_thread = true;
    *own = (struct own_stream){own_streams, context, context->id, stream};
    own_streams = own;
    pthread_setspecific(ending, own);
    return stream;
}

CUresult stream_from(CUstream handle, struct context *context, struct stream **stream)
{
    bool own = handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    TRY(own ? context_check(context) : CUDA_SUCCESS);
    FAIL_IF(!own && !object_is(handle, OBJECT_STREAM), CUDA_ERROR_INVALID_HANDLE);
    *stream = handle == CU_STREAM_PER_THREAD ? own_stream(context)
        : own ? context->legacy : (struct stream *)handle;
    return context_check((*stream)->context);
}

CUresult stream_submit(struct stream *stream, const struct work *work)
{
    if (stream->capture != NULL)
        return capture_add(stream, work);
    CUresult result = capture_allows(stream);
    if (result == CUDA_SUCCESS)
        stream_queue(stream, work, 1, NULL, 0);
    return result;
}
