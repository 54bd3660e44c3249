/* SPDX-License-Identifier: Apache-2.0 */
#include "block/store.h"

#include "block/block.h"
#include "block/search.h"

bool store_take(struct block *block, uint64_t allowance)
{
    if (!block->stored)
        block->stored = block->store->take(block, allowance);
    return block->stored;
}

void store_give(struct block *block)
{
    if (!block->stored)
        return;
    block->store->give(block);
    block->stored = block->known = false;
    block->right = 0;
    search_note(block);
}
