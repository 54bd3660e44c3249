/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What graphs copy between host and card, each time they are launched.
 */
#ifndef NVSHARE_FREIGHT_H
#define NVSHARE_FREIGHT_H

#include "interpose/driver.h"
#include "flight/bus_sharing.h"

/* `exec` was made of `graph`. Inside the gate, as addresses are looked up. */
void freight_weigh(CUgraphExec exec, CUgraph graph);
/* Inside the gate, around the launch. */
void freight_begins(struct traffic copies[TRAFFIC_WAYS], CUgraphExec exec);
void freight_ends(const struct traffic copies[TRAFFIC_WAYS]);

#endif
