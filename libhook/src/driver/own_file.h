/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own descriptors. A program may close one, or put a file of its own at its number,
 * as daemons do with all that they inherit. So a descriptor is known by a handle, and before each
 * use the kernel is asked whether its file is still the same. A forked child closes them all.
 *
 * To be made within UNFORKED, so that no child is forked before they are known.
 */
#pragma once

/* Takes over an open descriptor, which may be -1. A handle, or -1 with errno: then it is closed. */
int own_file_add(int descriptor);
/* For one that the program has taken. The handle's old descriptor stays as it is: the program may
 * be taking it at this very moment. */
void own_file_replace(int handle, int descriptor);
/* The descriptor; -1 with EBADF: the program has taken its number. */
int own_file_descriptor(int handle);
/* Only if it is still ours. The handle is void; -1 is none. */
void own_file_close(int handle);
void own_files_close_all(void);      /* in a forked child */
