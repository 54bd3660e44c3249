/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A variable that keeps its value in a forked child, where all others become 0. Each variable whose
 * initial value is not 0 must be KEPT_IN_CHILD: libhook/tests/hook/test_locks.py. */
#define KEPT_IN_CHILD __attribute__((section(".data.kept_in_child")))
