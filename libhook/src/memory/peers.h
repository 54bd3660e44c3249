/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

void memory_imported(void);         /* this process has mapped memory of another process */
/* Whether two addresses lie in memory of the library on different devices that cannot both access
 * each other's memory; sets the context of each address then. */
bool memory_apart(CUdeviceptr to, CUdeviceptr from, CUcontext *to_context, CUcontext *from_context);

/* Whether memory_apart() is false for all addresses. */
bool memory_never_apart(void);

/* Allows or forbids device `reader` to access the memory of device `owner`. */
CUresult memory_open_to_peer(CUdevice owner, CUdevice reader, bool open);
