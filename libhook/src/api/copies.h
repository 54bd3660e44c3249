/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which way a copy goes. The driver is asked where an address lies if the type does
 * not tell.
 */
#ifndef NVSHARE_COPIES_H
#define NVSHARE_COPIES_H

#include "interpose/driver.h"
#include "flight/bus_sharing.h"

enum traffic_way copies_way(CUmemorytype from_type, CUdeviceptr from, CUmemorytype to_type,
                            CUdeviceptr to);

#endif
