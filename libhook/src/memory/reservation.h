/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses that the program has reserved (cuMemAddressReserve). Those that return nothing and the
 * calls to the driver are made with no lock held, the others with memory_lock.
 */
#pragma once

#include "driver/driver.h"

void reservation_add(CUdeviceptr base, size_t size);
/* cuMemAddressFree: calls the driver. */
CUresult reservation_free(CUdeviceptr base, size_t size);
/* The driver is about to map something there of which the library knows nothing. */
void reservation_is_mixed(CUdeviceptr address);

/* The range lies in one, in which nothing is mapped but what the library knows. */
bool reservation_is_ours(CUdeviceptr address, size_t size);
/* The one around an address. False: not known. */
bool reservation_around(CUdeviceptr address, CUdeviceptr *base, size_t *size);
