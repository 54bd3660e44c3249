/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked rings that contain their head. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ring {
    struct ring *previous, *next;
};

#define RING_MEMBER(ring, type, field) ((type *)(void *)((char *)(ring) - offsetof(type, field)))

static inline void ring_clear(struct ring *head)
{
    head->previous = head->next = head;
}

/* Returns the head; if it is still zero, as in static memory, makes it an empty ring first. */
static inline struct ring *ring_ready(struct ring *head)
{
    if (head->next == NULL)
        ring_clear(head);
    return head;
}

static inline bool ring_empty(const struct ring *head)
{
    return head->next == head;
}

static inline void ring_append(struct ring *head, struct ring *link)
{
    link->previous = head->previous;
    link->next = head;
    head->previous->next = link;
    head->previous = link;
}

static inline void ring_leave(struct ring *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    ring_clear(link);
}

/* A loop over a list linked by the field `next`. Its body may remove and free `member`. */
#define EACH_LISTED(type, member, list)                                            \
    for (type *member = (list), *following;                                        \
         member != NULL && (following = member->next, true); member = following)

/* Removes a member from a list, singly linked by the field `next`, that contains it. */
#define LIST_REMOVE(list, member)                                                  \
    do {                                                                           \
        __typeof__(member) *list_link = &(list);                                   \
        while (*list_link != (member))                                             \
            list_link = &(*list_link)->next;                                       \
        *list_link = (member)->next;                                               \
    } while (0)
