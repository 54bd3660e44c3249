/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the rest of this library does. The only file that is not compiled to be counted. */
#include <stdint.h>

void __sanitizer_cov_trace_pc(void);

__attribute__((visibility("default"))) uint64_t steps;

/* Each step of the others calls it. */
void __sanitizer_cov_trace_pc(void)
{
    steps++;
}
