/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

struct vmm_allocation;

/* Turns a VMM allocation into one piece of the driver's memory that stays on the card; see
 * vmm_pin_in_place(). memory_lock is held, and released meanwhile; the caller holds a reference. */
CUresult pin_in_place(struct vmm_allocation *vmm);
