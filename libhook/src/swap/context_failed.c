/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a program's memory when its context has failed for good.
 *
 * A kernel that reaches where nothing is, an assertion on the card, an ECC error or
 * the card's falling off the bus leave a process in which every call fails from then on,
 * in all its contexts, and the driver gives it no other: "to continue using CUDA, the
 * process must be terminated and relaunched". Nobody can read its memory any more, nor
 * can anybody move it. But such a process may live for days: a notebook whose last cell
 * failed.
 *
 * What is on the card would be in everybody's way, and what is away would keep the
 * program at the gate for ever, as it cannot come back, where without the library its
 * next call fails. So when moving something has failed, the context is asked, and if it
 * has failed, all of the program's memory is given up: unmapped, which the driver does
 * all the same, and counted nowhere. The program then lacks nothing; it has turns like
 * any other, and its calls come to the driver, which says what happened.
 *
 * No byte can be wrong by that. What is lost is mapped nowhere and never again, so
 * should anything reach it after all, the driver says so.
 */
#include "swap/context_failed.h"

#include "block/block.h"
#include "client/client.h"
#include "interpose/log.h"
#include "interpose/real.h"

/* Only asks. Twice, for one call alone may fail. */
static CUresult error_of(CUcontext context)
{
    size_t unused, total;
    CUresult error = REAL(cuCtxSetCurrent)(context);
    if (error == CUDA_SUCCESS && REAL(cuMemGetInfo_v2)(&unused, &total) != CUDA_SUCCESS)
        error = REAL(cuMemGetInfo_v2)(&unused, &total);
    return error;
}

/* All of the device's have, as far as they are known. */
static CUresult error_of_all(const struct client *client)
{
    CUresult error = CUDA_SUCCESS;
    for (unsigned i = 0; i < client->context_count; i++)
        if ((error = error_of(client->contexts[i])) == CUDA_SUCCESS)
            return CUDA_SUCCESS;
    return error;
}

void release_if_context_failed(struct client *client)
{
    CUresult error = error_of_all(client);
    if (error == CUDA_SUCCESS)
        return;
    debug("this program's GPU context has failed for good (error %d): its memory is given up",
          (int)error);
    reclaim(client, RECLAIM_ALL, false);
    for (struct block *block = client->blocks; block != NULL; block = block->younger)
        block_lose(block);
}
