/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/event.h"

#include <stdlib.h>

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
