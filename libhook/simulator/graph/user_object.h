/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the program that graphs keep alive. */
#pragma once

#include <stdbool.h>

#include "driver/abi.h"

struct user_object;

struct user_share {                  /* what one graph holds of an object */
    struct user_share *next;
    struct user_object *object;
    unsigned count;
};

/* One share more and one fewer in a graph's list. `move`: the caller's references become its. */
CUresult user_object_retain(struct user_share **list, CUuserObject handle, unsigned count, bool move);
CUresult user_object_release(struct user_share **list, CUuserObject handle, unsigned count);

/* Releases and frees a graph's list. */
void user_objects_release(struct user_share *list);
