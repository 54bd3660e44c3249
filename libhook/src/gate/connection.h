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
/* 1: an order, 0: none is there now, -1: the connection has ended. `descriptor` receives a handle
 * of the descriptor that came with the order, or -1; NULL: that one is closed. */
int connection_receive(int connection, struct nvshare_order *order, int *descriptor,
                       int timeout_ms);
/* The next order, if it is there already and of this type. */
bool connection_next(int connection, unsigned type, struct nvshare_order *order);
