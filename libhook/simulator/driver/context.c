/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/context.h"

#include <stdlib.h>

#include "driver/object.h"

#define DEPTH 64

pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
struct context *all_contexts;

/* The thread's stack of contexts; the last entry is the current context and may be NULL. */
static __thread struct {
    struct context *contexts[DEPTH];
    int depth;
} stack;

/* The error of the first fault, after which all contexts of the process stay broken. */
static _Atomic int fault;

void context_fault(CUresult error)
{
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&fault, &none, (int)error);
}

CUresult context_error(void)
{
    return (CUresult)atomic_load(&fault);
}

CUresult context_check(struct context *context)
{
    FAIL_IF(context == NULL, CUDA_ERROR_INVALID_CONTEXT);
    FAIL_IF(!atomic_load(&context->alive), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return context_error();
}

struct context *context_from(CUcontext handle)
{
    if (handle == NULL)
        return context_current();
    return object_is(handle, OBJECT_CONTEXT) ? (struct context *)handle : NULL;
}

struct context *context_current(void)
{
    return stack.depth > 0 ? stack.contexts[stack.depth - 1] : NULL;
}

static bool is_green(const struct context *context)
{
    return context->owner != context;
}

static bool take(struct context *context)
{
    LOCKED(context_lock);
    bool is_free = context->entered == 0 || context->thread == &stack;
    context->entered += is_free;
    if (is_free)
        context->thread = &stack;
    return is_free;
}

bool context_push(struct context *context)
{
    if (stack.depth == DEPTH)
        abort();
    if (is_green(context) && !take(context))
        return false;
    stack.contexts[stack.depth++] = context;
    return true;
}

void context_pop(void)
{
    if (stack.depth == 0)
        return;
    struct context *context = stack.contexts[--stack.depth];
    if (!is_green(context))
        return;
    LOCKED(context_lock);
    context->entered--;
}
