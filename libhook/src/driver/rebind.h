/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* From now on whoever looks for a hooked function in the driver itself finds our wrapper, and who
 * has found the driver's before has ours. Once, in a process that shares its GPU. */
void rebind_driver(void);
