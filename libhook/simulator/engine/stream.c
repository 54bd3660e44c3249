/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stream.h"

#include <stdlib.h>
#include <string.h>

#include "driver/object.h"

struct stream *stream_make(struct context *context, unsigned flags, int priority)
{
    static _Atomic unsigned long long made;
    struct stream *stream = checked(calloc(1, sizeof *stream));
    *stream = (struct stream){.context = context, .references = 1, .flags = flags,
                              .priority = priority, .id = atomic_fetch_add(&made, 1) + 1};
    pthread_cond_init(&stream->work, NULL);
    pthread_mutex_lock(&engine_lock);
    stream->next = context->streams;
    context->streams = stream;
    pthread_mutex_unlock(&engine_lock);
    object_add(stream, OBJECT_STREAM);
    return stream;
}

void stream_hold(struct stream *stream)
{
    stream->references++;
}

void stream_drop(struct stream *stream)
{
    if (--stream->references > 0)
        return;
    struct stream **place = &stream->context->streams;
    while (*place != stream)
        place = &(*place)->next;
    *place = stream->next;
    pthread_cond_destroy(&stream->work);
    free(stream->capture_ends);
    free(stream);
}

void stream_close(struct stream *stream)
{
    object_remove(stream);
    stream->destroyed = true;
    pthread_cond_signal(&stream->work);
    stream_drop(stream);
}

bool stream_reached(const struct position *position)
{
    return position->stream->completed >= position->number;
}

void positions_drop(struct position *positions, size_t count)
{
    for (size_t i = 0; i < count; i++)
        stream_drop(positions[i].stream);
    free(positions);
}

void stream_add(struct position **list, size_t *count, struct position position)
{
    if (stream_reached(&position))
        return;
    *list = checked(realloc(*list, (*count + 1) * sizeof **list));
    (*list)[(*count)++] = position;
    stream_hold(position.stream);
}

void stream_add_position(struct position **list, size_t *count, struct stream *stream)
{
    stream_add(list, count, (struct position){stream, stream->submitted});
}

void stream_add_implicit(struct stream *stream, struct position **list, size_t *count)
{
    struct context *context = stream->context;
    if (stream == context->legacy) {
        for (struct stream *other = context->streams; other != NULL; other = other->next)
            if (other != stream && (other->flags & CU_STREAM_NON_BLOCKING) == 0)
                stream_add_position(list, count, other);
    } else if ((stream->flags & CU_STREAM_NON_BLOCKING) == 0) {
        stream_add_position(list, count, context->legacy);
    }
}

struct position *context_positions(struct context *context, size_t *count)
{
    struct position *list = NULL;
    *count = 0;
    for (struct context *one = all_contexts; one != NULL; one = one->next)
        if (one == context || one->owner == context)
            for (struct stream *stream = one->streams; stream != NULL; stream = stream->next)
                stream_add_position(&list, count, stream);
    return list;
}

void event_hold(struct event *event)
{
    event->references++;
}

static void forget_position(struct event *event)
{
    if (event->last.stream != NULL)
        stream_drop(event->last.stream);
    event->last.stream = NULL;
    free(event->nodes);
    event->nodes = NULL;
    event->node_count = 0;
    event->capture_id = 0;
}

void event_drop(struct event *event)
{
    if (--event->references > 0)
        return;
    forget_position(event);
    free(event);
}

void event_set_captured(struct event *event, unsigned long long capture_id,
                        struct node *const *nodes, size_t count)
{
    forget_position(event);
    event->capture_id = capture_id;
    event->nodes = checked(malloc((count + 1) * sizeof(struct node *)));
    memcpy(event->nodes, nodes, count * sizeof(struct node *));
    event->node_count = count;
}

void event_set(struct event *event, struct stream *stream, uint64_t number)
{
    stream_hold(stream);
    forget_position(event);
    event->last = (struct position){stream, number};
}

bool event_reached(const struct event *event)
{
    return event->last.stream == NULL || stream_reached(&event->last);
}
