/* SPDX-License-Identifier: Apache-2.0 */
/* REAL() and HAVE_REAL() for layers below api/: they call only the functions of ops.def. */
#pragma once

#include "driver/real.h"

enum op {
#define OP(name) OP_##name = REAL_##name,
#include "driver/ops.def"
#undef OP
};

#undef REAL
#undef HAVE_REAL
#define REAL(name) \
    (LOCK_CHECK_CALL(name), (__typeof__(&name))real_function((enum real_index)OP_##name))
#define HAVE_REAL(name) (real_function((enum real_index)OP_##name) != (void *)real_absent)
