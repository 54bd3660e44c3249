/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs on one card tell each other whether they have work under way; telling.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

/* By service threads, under service_lock. A descriptor is the caller's to close. */

/* The client keeps its word in this page; -1: in none any more. */
void telling_keep(struct client *client, int descriptor);
/* And heeds the word with this number, in this page; -1: no more. */
void telling_heed(struct client *client, uint64_t number, int descriptor);
void telling_forget(struct client *client);        /* it keeps no word, and heeds none */
/* A program that heeds somebody is in the background. */
bool telling_heeds(void);
/* One that is heeded has work under way. */
bool telling_urgent_works(void);

/* Its word says that work is under way. */
bool telling_busy(const struct client *client);
/* More is under way than before: until it is cleared, threads need not count. */
void telling_goes_on(struct client *client);
/* Nothing more has been submitted than in these `passes` of the gate, nobody is inside, and who
 * comes now counts. False: not so. */
bool telling_arm(struct client *client, uint64_t passes);
/* What had been submitted before that is done. False: somebody has counted since. */
bool telling_clear(struct client *client);

/* Lets those go on who are held, if they may. `stalled`: what they have in flight does not end.
 * Returns after how many us to look again; 0: nobody is held. */
uint64_t telling_look(uint64_t now, bool stalled);
