/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which block is the next to come in, to leave, or to give up its place. All functions are called
 * with memory_lock held.
 */
#pragma once

#include "block/block.h"

/* What it costs to let a block leave; out.c says why. */
enum rank { RANK_ZERO, RANK_UNCHANGED, RANK_OTHER, RANKS };

enum search {
    SEARCH_ABSENT,                   /* to come in */
    /* All others are on the card, and */
    SEARCH_KEPT,                     /* keep their place elsewhere, */
    SEARCH_UNSEEN,                   /* were never looked at, */
    SEARCH_LIGHT,                    /* were zero when they last were, */
    SEARCH_READY,                    /* may leave without a copy, */
    SEARCH_VICTIM,                   /* add a rank: may leave, at no higher one, */
    SEARCH_UNREADY = SEARCH_VICTIM + RANKS, /* the same, but not without a copy */
    SEARCHES = SEARCH_UNREADY + RANKS,
};

/* The oldest or the youngest that there is. NULL: there is none. */
struct block *search_oldest(const struct client *client, enum search search);
struct block *search_youngest(const struct client *client, enum search search);
/* All of them together. */
uint64_t search_bytes(const struct client *client, enum search search);

/* A new block, the youngest. False: no memory. */
bool search_enter(struct block *block);
/* Something of it has changed that may matter to a search. */
void search_note(struct block *block);
/* It is about to go. */
void search_leave(struct block *block);
