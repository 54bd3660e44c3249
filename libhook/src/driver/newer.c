/* SPDX-License-Identifier: Apache-2.0 */
/* A new driver's function usually is an old function with more arguments, and families that only
 * query or wait are known. Other functions that take a stream count as submitting work: a wrong
 * guess only makes the call pass the gate. A test classifies all functions of known drivers. */
#include "driver/newer.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The first pattern that matches applies. */
static const struct { const char *pattern; enum newer_kind kind; } families[] = {
    { "cuStream*Cig", NEWER_OTHER },
    /* cuStreamBegin*: begins a capture, of which the library does not see the end. */
    { "cuStreamBegin*", NEWER_KEEPS }, { "cuStream*Value*", NEWER_SUBMITS },
    { "cuStream*MemOp*", NEWER_SUBMITS }, { "cuStream*Async", NEWER_SUBMITS },
    { "cuStream*", NEWER_OTHER }, { "cuEvent*", NEWER_OTHER },
    { "cu*Event", NEWER_OTHER }, { "cuGraphics*", NEWER_OTHER },
    /* NEWER_KEEPS below: an NVLink switch, another card or another process may write to the memory
     * after the call, so the memory is pinned. */
    { "cu*Unbind*", NEWER_OTHER }, { "cu*Bind*", NEWER_KEEPS },
    { "cuMemPoolExport*", NEWER_OTHER }, { "cuMem*Export*", NEWER_KEEPS },
    { "cuMemGetHandle*", NEWER_KEEPS }, { "cuLaunch*", NEWER_SUBMITS },
    { "cuMemcpy*", NEWER_SUBMITS }, { "cuMemset*", NEWER_SUBMITS },
    { "cuMem*Prefetch*", NEWER_SUBMITS }, { "cuMemDiscard*", NEWER_SUBMITS },
    { "cuGraph*Launch*", NEWER_SUBMITS }, { "cuGraph*Upload*", NEWER_SUBMITS },
    { "cuGraphInstantiate*", NEWER_SUBMITS }, { "cuGraphExecUpdate", NEWER_SUBMITS },
    { "cuGraph*GetParams", NEWER_OTHER }, { "cuGraph*Memcpy*", NEWER_SUBMITS },
    { "cuGraph*Memset*", NEWER_SUBMITS }, { "cuGraphAddNode", NEWER_SUBMITS },
    { "cuGraphNodeSetParams", NEWER_SUBMITS }, { "cuGraphExecNodeSetParams", NEWER_SUBMITS },
    { "cu*Async", NEWER_SUBMITS },
};

int newer_base(const char *name)
{
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0
                       || strcmp(name + length - 5, "_ptds") == 0))
        length -= 5;
    size_t end = length;
    while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9')
        end--;
    bool versioned = end < length && end > 2 && name[end - 1] == 'v' && name[end - 2] == '_';
    return (int)(versioned ? end - 2 : length);
}

enum newer_kind newer_kind(const char *name, bool takes_stream)
{
    char base[128];
    if (snprintf(base, sizeof base, "%.*s", newer_base(name), name) >= (int)sizeof base)
        return NEWER_OTHER;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (fnmatch(families[i].pattern, base, 0) == 0)
            return families[i].kind;
    return takes_stream ? NEWER_SUBMITS : NEWER_OTHER;
}
