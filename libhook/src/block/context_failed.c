/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives up a program's memory when its context has failed for good. Others get the room, and the
 * program gets its error.
 *
 * An illegal access, an assertion on the card, an ECC error or a lost card leave a process in which
 * every call fails from then on, in all its contexts; the driver says that "to continue using CUDA,
 * the process must be terminated and relaunched". Nobody can read or move its memory. But such a
 * process may live for days, as a notebook whose last cell failed does.
 *
 * Its memory on the card would be in everybody's way. Memory that is away would keep the program at
 * the gate for ever, where without the library its next call fails. So when a move has failed we
 * ask the context. If it has failed, all of the program's memory is unmapped, which the driver
 * still does, and counted no longer. The program lacks nothing then. It has turns as any other, and
 * the driver answers its calls.
 *
 * No byte can be wrong by that: lost memory is never mapped again, so the driver reports any use of
 * it.
 */
#include "block/context_failed.h"

#include "block/block.h"
#include "driver/log.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"

/* All of the device's have, as far as they are known. */
static CUresult error_of_all(const struct client *client)
{
    CUresult error = CUDA_SUCCESS;
    CUcontext context;
    for (unsigned i = 0; (context = contexts_of(client->device, i)) != NULL; i++)
        if ((error = context_error(context)) == CUDA_SUCCESS)
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
