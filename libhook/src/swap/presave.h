/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

struct client;
struct nvshare_order;

/* Carries out an EVICT with KEEP. Returns bytes that could leave without a copy now. */
uint64_t swap_presave(struct client *client, const struct nvshare_order *order, unsigned *flags);
