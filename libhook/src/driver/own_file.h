/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own descriptors. A program may close one, or put another file at its number, as
 * daemons do with all inherited descriptors. A descriptor is therefore used through a handle, and
 * before each use the kernel is asked whether its file is still the same. A forked child closes all
 * of them. None of them has the number of a standard stream, even if the program has closed that
 * stream: the program's output must not go to the daemon.
 *
 * The library's descriptors must be created within UNFORKED, so that no child is forked before they
 * are registered.
 */
#pragma once

#include <sys/types.h>

/* Takes ownership of an open descriptor, which may be -1. Returns a handle, or -1 with errno; the
 * descriptor is then closed. */
int own_file_add(int descriptor);
/* Replaces the descriptor of a handle whose number the program has taken. The old number is not
 * closed: the program may be using it. */
void own_file_replace(int handle, int descriptor);
/* The descriptor; -1 with EBADF: the program has closed it, or has put another file there. */
int own_file_descriptor(int handle);
/* Creates a socket for packets between processes; `flags`: as for socket(). Returns as
 * own_file_add(). */
int own_file_socket(int flags);
/* Receives a packet without waiting, as recv(); returns its length, which may exceed `size`. *file
 * becomes the handle of the descriptor that came with it; -1: none came, or several. */
ssize_t own_file_receive(int handle, void *packet, size_t size, int *file);
/* Closes the descriptor if it is still the library's. The handle becomes invalid; -1 is ignored. */
void own_file_close(int handle);
void own_files_close_all(void);      /* called in a forked child */
