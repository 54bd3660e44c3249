/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/user_object.h"

#include <stdlib.h>

#include "driver/context.h"
#include "driver/entry.h"
#include "driver/object.h"

struct user_object {
    _Atomic unsigned references;
    CUhostFn destroy;
    void *data;
};

static struct user_object *object_from(CUuserObject handle)
{
    return object_is(handle, OBJECT_USER) ? (struct user_object *)handle : NULL;
}

static void release(struct user_object *object, unsigned count)
{
    if (atomic_fetch_sub(&object->references, count) != count)
        return;
    object_remove(object);
    entry_in_callback(true);         /* it may not call the driver */
    object->destroy(object->data);
    entry_in_callback(false);
    free(object);
}

void user_objects_release(struct user_share *list)
{
    for (struct user_share *next; list != NULL; list = next) {
        next = list->next;
        release(list->object, list->count);
        free(list);
    }
}

API(cuUserObjectCreate, CUuserObject *handle, void *data, CUhostFn destroy,
    unsigned int references, unsigned int flags)
{
    ENTER(ENTRY_INIT);
    if (handle == NULL || destroy == NULL || references == 0
        || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user_object *object = calloc(1, sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *object = (struct user_object){references, destroy, data};
    object_add(object, OBJECT_USER);
    *handle = (CUuserObject)object;
    return CUDA_SUCCESS;
}

API(cuUserObjectRetain, CUuserObject handle, unsigned int count)
{
    ENTER(ENTRY_INIT);
    struct user_object *object = object_from(handle);
    if (object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_add(&object->references, count);
    return CUDA_SUCCESS;
}

API(cuUserObjectRelease, CUuserObject handle, unsigned int count)
{
    ENTER(ENTRY_INIT);
    struct user_object *object = object_from(handle);
    if (object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    release(object, count);
    return CUDA_SUCCESS;
}

CUresult user_object_retain(struct user_share **list, CUuserObject handle, unsigned count, bool move)
{
    struct user_object *object = object_from(handle);
    struct user_share *share = object != NULL && count != 0 ? calloc(1, sizeof *share) : NULL;
    if (share == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!move)
        atomic_fetch_add(&object->references, count);
    pthread_mutex_lock(&engine_lock);
    *share = (struct user_share){*list, object, count};
    *list = share;
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

CUresult user_object_release(struct user_share **list, CUuserObject handle, unsigned count)
{
    struct user_share *found = NULL;
    if (object_from(handle) == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    for (struct user_share **place = list; *place != NULL && found == NULL; place = &(*place)->next)
        if ((*place)->object == (struct user_object *)handle && (*place)->count == count) {
            found = *place;
            *place = found->next;
            break;
        }
    pthread_mutex_unlock(&engine_lock);
    if (found == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    found->next = NULL;
    user_objects_release(found);
    return CUDA_SUCCESS;
}
