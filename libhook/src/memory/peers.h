/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* Memory of another process is mapped, on whatever card. */
void memory_imported(void);
/* Whether two addresses are of our memory on different devices that may not both reach each other's.
 * If so, gives the contexts of which they are. */
bool memory_apart(CUdeviceptr to, CUdeviceptr from, CUcontext *to_context,
                  CUcontext *from_context);

/* No two addresses are so. */
bool memory_never_apart(void);

/* The memory of `owner` may from now on be reached from `reader`, or no longer. */
CUresult memory_open_to_peer(CUdevice owner, CUdevice reader, bool open);
