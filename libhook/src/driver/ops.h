/* SPDX-License-Identifier: Apache-2.0 */
/* The only way to the driver for layers below api/: REAL() and HAVE_REAL() as in real.h, but only
 * for the functions in ops.def. */
#pragma once

#include "driver/real.h"

enum op {
#define OP(name) OP_##name = REAL_##name,
#include "driver/ops.def"
#undef OP
};

#undef REAL
#undef HAVE_REAL
#define REAL(name) ((__typeof__(&name))real_function((enum real_index)OP_##name))
#define HAVE_REAL(name) (real_function((enum real_index)OP_##name) != (void *)real_absent)
