/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Right before a cuInit of the program's. */
void process_end_watch(void);
