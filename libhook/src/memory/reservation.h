/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses that the program has reserved (cuMemAddressReserve). Functions that return nothing and
 * the ones that call the driver take memory_lock themselves; the others are called with it held.
 */
#pragma once

#include "driver/driver.h"

void reservation_add(CUdeviceptr base, size_t size);
/* cuMemAddressFree: calls the driver. */
CUresult reservation_free(CUdeviceptr base, size_t size);
/* Records that the driver is about to map memory there that is not the library's. */
void reservation_is_mixed(CUdeviceptr address);

/* Whether the range lies in one reservation in which only the library maps memory. */
bool reservation_is_ours(CUdeviceptr address, size_t size);
/* Returns the reservation around an address. False: not known. */
bool reservation_around(CUdeviceptr address, CUdeviceptr *base, size_t *size);
