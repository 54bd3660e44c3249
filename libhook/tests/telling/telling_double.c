/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What telling.c, activity.c and gate.c stand on, in figures alone: a card whose work ends when the
 * test says so, and a clock. With THREADS a program of so many threads that launch, and a service
 * thread; each says whether the word was right whenever it had work under way.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gate/client.h"
#include "gate/gate.h"
#include "gate/telling.h"
#include "flight/activity.h"

#define SEEN __attribute__((visibility("default")))

SEEN _Atomic uint64_t clock_us;
SEEN _Atomic unsigned woken;         /* how often the service thread was */
static _Atomic uint64_t submitted, finished;
static struct client one;
static struct activity activity;
struct client *clients[CLIENTS_MAX] = { &one };

uint64_t now_microseconds(void)
{
    return clock_us;
}

void client_wake(struct client *client) { woken++; }

/* Covers what had been submitted when it began. */
void drain_begin(struct drain *drain)
{
    drain->moment = submitted;
}

bool drain_step(struct drain *drain)
{
    return finished >= drain->moment;
}

void drain_abandon(struct drain *drain)
{
    drain->moment = 0;
}

SEEN void prepare(void)
{
    gate_prepare();
}

SEEN void keep(int descriptor)
{
    telling_keep(&one, descriptor);
}

SEEN void heed(uint64_t number, int descriptor)
{
    telling_heed(&one, number, descriptor);
}

SEEN void forget(void)
{
    telling_forget(&one);
}

SEEN bool may_pass(void)
{
    return (gate_closed & GATE_TELLING) == 0 || gate_telling->may_pass();
}

SEEN bool must_count(void)
{
    return (gate_closed & GATE_TELLING) != 0;
}

SEEN uint64_t look(bool stalled)
{
    return telling_look(clock_us, stalled);
}

SEEN uint64_t settle(void)
{
    int64_t next = activity_sample(&one, &activity, ACTIVITY_BURST);
    return next == NEVER ? 0 : (uint64_t)next;
}

SEEN void launch(void)
{
    gate_enter(GATE_NO_STREAM);
    submitted++;
    gate_leave();
}

SEEN void end_all(void)
{
    finished = submitted;
}

#ifdef THREADS
#define LAUNCHES 3000

static struct nvshare_word *word;
static _Atomic unsigned wrong, ended;
static _Atomic unsigned cleared;

static bool under_way(void)
{
    uint64_t done = __atomic_load_n(&word->done, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&word->begun, __ATOMIC_SEQ_CST) != done;
}

static void *launches(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < LAUNCHES; i++) {
        gate_enter(GATE_NO_STREAM);
        submitted++;
        if (rand_r(&seed) % 4 == 0)
            sched_yield();
        wrong += !under_way();
        gate_leave();
        if (rand_r(&seed) % 4 == 0)
            sched_yield();
        wrong += !under_way();
        finished++;
        for (unsigned pause = rand_r(&seed) % 8; pause > 5; pause--)
            usleep(50);
    }
    ended++;
    return NULL;
}

static void *opens_and_closes(void *unused)
{
    while (ended < THREADS) {
        gate_close(1);
        usleep(20);
        gate_open(1);
        usleep(200);
    }
    return unused;
}

int main(void)
{
    pthread_t threads[THREADS + 1];
    int page = memfd_create("word", 0);
    if (page < 0 || ftruncate(page, 4096) != 0)
        return 1;
    word = mmap(NULL, 4096, PROT_READ, MAP_SHARED, page, 0);
    telling_keep(&one, page);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, launches, (void *)(i + 1));
    pthread_create(&threads[THREADS], NULL, opens_and_closes, NULL);
    while (ended < THREADS) {
        clock_us += 30;
        settle();
        cleared += !telling_busy(&one);
    }
    for (unsigned i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 100 && telling_busy(&one); i++) {
        clock_us += 1000;
        settle();
    }
    fprintf(stderr, "%s%s", wrong == 0 ? "" : "work was under way and nobody said so\n",
            cleared > 0 && !telling_busy(&one) ? "" : "it never said that nothing was\n");
    puts("well");
    return 0;
}
#endif
