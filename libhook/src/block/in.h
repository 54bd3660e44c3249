/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;
struct nvshare_order;

/* Carries out this LOAD as swap_out() does an EVICT, and those that arrive meanwhile; answers them,
 * too. */
void swap_in(struct client *client, const struct nvshare_order *order);
