/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a driver newer than this library, classified by their names. */
#pragma once

#include <stdbool.h>

#define NEWER_MAX 128                /* most functions of one newer driver that are wrapped */

enum newer_kind {
    NEWER_OTHER,                     /* only queries, waits, orders work, or calls the host */
    NEWER_SUBMITS,                   /* submits work or looks up addresses: calls pass the gate */
    NEWER_KEEPS,                     /* as SUBMITS, and the memory must be pinned afterwards */
};

/* `takes_stream`: the function has a variant for per-thread default streams. */
enum newer_kind newer_kind(const char *name, bool takes_stream);

/* The length of a function's name without "_v2", "_ptsz", "_v3_ptds". */
int newer_base(const char *name);
