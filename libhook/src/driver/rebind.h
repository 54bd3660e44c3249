/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Replaces addresses of driver functions by wrappers and stubs, in the driver's symbol table and in
 * references that are bound already. Called once, in a process that shares its GPU. */
void rebind_driver(void);
