/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the steps of the library. This file alone is compiled without instrumentation. */
#include <stdint.h>

void __sanitizer_cov_trace_pc(void);

__attribute__((visibility("default"))) uint64_t steps;

/* The compiled library calls this function at each edge of the control flow. */
void __sanitizer_cov_trace_pc(void)
{
    steps++;
}
