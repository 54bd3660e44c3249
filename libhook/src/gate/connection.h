/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the daemon, without any client's state. It is a handle of own_file.h.
 */
#pragma once

#include <stdbool.h>

struct nvshare_order;
struct nvshare_report;

int connection_open(void);             /* -1 and errno */
bool connection_send(int connection, const struct nvshare_report *report);
/* Receives an order. 1: received, 0: none has arrived in time, -1: the connection has ended.
 * `descriptor` receives a handle of the descriptor sent with the order, or -1; NULL: a descriptor
 * is closed. */
int connection_receive(int connection, struct nvshare_order *order, int *descriptor,
                       int timeout_ms);
/* Receives the next order if it has arrived already and is of this type. */
bool connection_next(int connection, unsigned type, struct nvshare_order *order);
