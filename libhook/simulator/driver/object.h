/* SPDX-License-Identifier: Apache-2.0 */
/* The table of valid handles. A call with a destroyed handle, or a handle of another kind, fails
 * with an error, since a crash would not show which call was wrong. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>

enum object_kind {
    OBJECT_CONTEXT = 1, OBJECT_STREAM, OBJECT_EVENT, OBJECT_MODULE, OBJECT_FUNCTION,
    OBJECT_PHYSICAL, OBJECT_GRAPH, OBJECT_NODE, OBJECT_GRAPH_EXEC,
    OBJECT_POOL, OBJECT_ARRAY, OBJECT_MIPMAP, OBJECT_GREEN,
    OBJECT_RESOURCES,
};

void object_add(const void *handle, enum object_kind kind);
void object_remove(const void *handle);
bool object_is(const void *handle, enum object_kind kind);

/* Defines a function that returns the object of a handle; NULL: the handle is not valid. */
#define OBJECT_FROM(name, structure, handle_type, kind)                                  \
    static inline structure *name(handle_type handle)                                    \
    {                                                                                    \
        return object_is(handle, kind) ? (structure *)handle : NULL;                     \
    }

/* Returns new memory; ends the process if the host has none. */
static inline void *checked(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}
