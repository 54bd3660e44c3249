/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* Nothing is in flight: graphs give back what they hold of the card and do not use. */
void graph_memory_trim(CUdevice device);
