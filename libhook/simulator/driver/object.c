/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/object.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct object {
    struct object *next;
    const void *handle;
    enum object_kind kind;
};

#define BUCKETS 4096                 /* a power of two */

static struct {
    pthread_mutex_t lock;            /* protects the table; its holder takes no other lock */
    struct object *buckets[BUCKETS];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The link to the handle's object, or the end of its bucket. */
static struct object **find(const void *handle)
{
    size_t hash = (size_t)(((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15ull >> 20);
    struct object **place = &table.buckets[hash & (BUCKETS - 1)];
    while (*place != NULL && (*place)->handle != handle)
        place = &(*place)->next;
    return place;
}

void object_add(const void *handle, enum object_kind kind)
{
    struct object *object = checked(malloc(sizeof *object));
    *object = (struct object){NULL, handle, kind};
    pthread_mutex_lock(&table.lock);
    *find(handle) = object;
    pthread_mutex_unlock(&table.lock);
}

void object_remove(const void *handle)
{
    pthread_mutex_lock(&table.lock);
    struct object **place = find(handle), *object = *place;
    if (object != NULL)
        *place = object->next;
    pthread_mutex_unlock(&table.lock);
    free(object);
}

bool object_is(const void *handle, enum object_kind kind)
{
    pthread_mutex_lock(&table.lock);
    const struct object *object = handle != NULL ? *find(handle) : NULL;
    bool is = object != NULL && object->kind == kind;
    pthread_mutex_unlock(&table.lock);
    return is;
}
