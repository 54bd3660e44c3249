/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket, without any client's state.
 */
#pragma once

#include <stdbool.h>

struct nvshare_order;
struct nvshare_report;

#define DESCRIPTORS_MOST 64            /* with one record */

/* What came with a record. */
struct descriptors {
    unsigned count;
    int fd[DESCRIPTORS_MOST];
};

int connection_open(void);             /* -1 and errno */
bool connection_send(int socket, const struct nvshare_report *report);
/* The same with a copy of a descriptor. */
bool connection_pass(int socket, const struct nvshare_report *report, int descriptor);
/* 1: an order, 0: nothing there now, -1: the connection is at its end. `with` gets what came
 * with it; NULL: that is closed. */
int connection_receive(int socket, struct nvshare_order *order, struct descriptors *with,
                       int timeout_ms);
/* The next order if it is there already and of this type. */
bool connection_next(int socket, unsigned type, struct nvshare_order *order,
                     struct descriptors *with);
void descriptors_close(struct descriptors *descriptors);
