/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses. Large regions of address space are reserved from the
 * driver once and parcelled out here in pages of 2 MiB, the unit in which
 * the driver maps. An address belongs to whoever took it until it is given
 * back, mapped or not.
 *
 * All functions are called with the memory lock held.
 */
#ifndef NVSHARE_REGION_H
#define NVSHARE_REGION_H

#include <stdbool.h>

#include "interpose/driver.h"

#define PAGE ((size_t)2 << 20)
#define WHOLE_PAGES(bytes) (((bytes) + PAGE - 1) / PAGE * PAGE)

/* Takes `size` bytes (whole pages). The driver's error if it has no addresses. */
CUresult region_take(size_t size, CUdeviceptr *address);
void region_give(CUdeviceptr address, size_t size);

/* Each page of taken addresses can carry a pointer to what it is used for. */
void region_set_owner(CUdeviceptr address, size_t size, void *owner);
void *region_owner(CUdeviceptr address);          /* NULL: not ours, or not in use */
bool region_contains(CUdeviceptr address);        /* reserved by us, in use or not */

#endif
