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

static struct {
    pthread_mutex_t lock;            /* protects the table; its holder takes no other lock */
    struct object **buckets;
    size_t size, count;              /* `size` is a power of two */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t bucket_of(const void *handle, size_t size)
{
    return (size_t)(((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15ull >> 20) & (size - 1);
}

static void grow(void)
{
    size_t size = table.size == 0 ? 256 : table.size * 2;
    struct object **buckets = checked(calloc(size, sizeof *buckets));
    for (size_t i = 0; i < table.size; i++)
        for (struct object *object = table.buckets[i], *next; object != NULL; object = next) {
            next = object->next;
            size_t bucket = bucket_of(object->handle, size);
            object->next = buckets[bucket];
            buckets[bucket] = object;
        }
    free(table.buckets);
    table.buckets = buckets;
    table.size = size;
}

void object_add(const void *handle, enum object_kind kind)
{
    struct object *object = checked(malloc(sizeof *object));
    pthread_mutex_lock(&table.lock);
    if (table.count >= table.size)
        grow();
    size_t bucket = bucket_of(handle, table.size);
    *object = (struct object){table.buckets[bucket], handle, kind};
    table.buckets[bucket] = object;
    table.count++;
    pthread_mutex_unlock(&table.lock);
}

static struct object **find(const void *handle)
{
    struct object **place = &table.buckets[bucket_of(handle, table.size)];
    while (*place != NULL && (*place)->handle != handle)
        place = &(*place)->next;
    return place;
}

void object_remove(const void *handle)
{
    pthread_mutex_lock(&table.lock);
    struct object **place = find(handle), *object = *place;
    if (object != NULL) {
        *place = object->next;
        table.count--;
    }
    pthread_mutex_unlock(&table.lock);
    free(object);
}

bool object_is(const void *handle, enum object_kind kind)
{
    if (handle == NULL)
        return false;
    pthread_mutex_lock(&table.lock);
    struct object *object = table.size != 0 ? *find(handle) : NULL;
    bool is = object != NULL && object->kind == kind;
    pthread_mutex_unlock(&table.lock);
    return is;
}
