/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Replaces the addresses of driver functions by those of wrappers and stubs: in the driver's own
 * symbol table, for later lookups, and in references of loaded objects that are bound already.
 * Called once, in a process that shares its GPU. */
void rebind_driver(void);
