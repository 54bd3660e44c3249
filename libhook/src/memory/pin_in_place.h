/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

struct vmm_allocation;

/* Makes a VMM allocation one piece of the driver's memory that stays on the card; see
 * vmm_pin_in_place(). With memory_lock held, which is released meanwhile; the
 * caller holds a reference. */
CUresult pin_in_place(struct vmm_allocation *vmm);
