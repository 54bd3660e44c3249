/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "interpose/driver.h"

/* The memory of `owner` may from now on be reached from `reader`, or no longer. */
CUresult memory_open_to_peer(CUdevice owner, CUdevice reader, bool open);
