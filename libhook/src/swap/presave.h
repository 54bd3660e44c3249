/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_PRESAVE_H
#define NVSHARE_PRESAVE_H

#include <stdint.h>

struct client;
struct nvshare_record;

/* Carries out a PRESAVE as swap_out() does an EVICT. Returns bytes that could leave without a
 * copy now. */
uint64_t swap_presave(struct client *client, const struct nvshare_record *order, unsigned *flags);

#endif
