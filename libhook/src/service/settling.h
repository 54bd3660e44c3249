/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding out that work which was under way is done, so that others may go on; settling.c. On the
 * service thread with service_lock held.
 */
#pragma once

#include "flight/drain.h"

struct settling {
    bool watching;                   /* since `began`; nothing has passed since `since`, */
    bool draining;
    bool armed;                      /* and whoever comes counts, since before the drain began */
    uint64_t passes;                 /* when it was so many */
    uint64_t began, since;
    struct drain drain;
};

/* Returns after how many us to look again; 0: when something is submitted. */
uint64_t settling_look(struct client *client, struct settling *settling);
