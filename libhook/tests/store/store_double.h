/* SPDX-License-Identifier: Apache-2.0 */
/* What store_file.c and store_double.c share. */
#pragma once

#include "block/block.h"
#include "interpose/real.h"

#define SEEN __attribute__((visibility("default")))

extern const struct store store_file, store_emptied;
