/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated environment for inflight.c, activity.c and gate.c: a GPU that ends its work when the
 * test says so, and a clock. With THREADS it is a program of THREADS launching threads and a
 * service thread; each launching thread checks that the shared page shows work in flight while
 * work of the thread is in flight.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gate/client.h"
#include "gate/gate.h"
#include "gate/inflight.h"
#include "flight/activity.h"

SEEN _Atomic uint64_t clock_us;
SEEN _Atomic unsigned woken;         /* wake-ups of the service thread */
static _Atomic uint64_t submitted, finished;
static struct client one;
static struct activity activity;
struct client *clients[CLIENTS_MAX] = { &one };

uint64_t now_microseconds(void) { return clock_us; }
void client_wake(struct client *client) { woken++; }

/* The drain covers the work submitted so far. */
void drain_begin(struct drain *drain) { drain->moment = submitted; }
bool drain_step(struct drain *drain) { return finished >= drain->moment; }
void drain_abandon(struct drain *drain) { drain->moment = 0; }

SEEN void publish(int descriptor) { inflight_publish(&one, descriptor); }
SEEN void watch(uint64_t number, int descriptor) { inflight_watch(&one, number, descriptor); }
SEEN void forget(void) { inflight_forget(&one); }

SEEN bool may_pass(void)
{
    return (gate_closed & GATE_PUBLISHING) == 0 || inflight_may_pass();
}

SEEN bool must_count(void) { return (gate_closed & GATE_PUBLISHING) != 0; }
SEEN uint64_t look(bool stalled) { return inflight_poll(clock_us, stalled); }

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

SEEN void end_all(void) { finished = submitted; }

#ifdef THREADS
#define LAUNCHES 3000

static struct nvshare_inflight *counters;
static _Atomic unsigned wrong, ended;
static _Atomic unsigned cleared;

static bool page_is_busy(void)
{
    uint64_t done = __atomic_load_n(&counters->done, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&counters->begun, __ATOMIC_SEQ_CST) != done;
}

static void *launches(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < LAUNCHES; i++) {
        gate_enter(GATE_NO_STREAM);
        submitted++;
        if (rand_r(&seed) % 4 == 0)
            sched_yield();
        wrong += !page_is_busy();
        gate_leave();
        if (rand_r(&seed) % 4 == 0)
            sched_yield();
        wrong += !page_is_busy();
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
    int page = memfd_create("inflight", 0);
    if (page < 0 || ftruncate(page, 4096) != 0)
        return 1;
    counters = mmap(NULL, 4096, PROT_READ, MAP_SHARED, page, 0);
    inflight_publish(&one, page);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, launches, (void *)(i + 1));
    pthread_create(&threads[THREADS], NULL, opens_and_closes, NULL);
    while (ended < THREADS) {
        clock_us += 30;
        settle();
        cleared += !inflight_busy(&one);
    }
    for (unsigned i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 100 && inflight_busy(&one); i++) {
        clock_us += 1000;
        settle();
    }
    fprintf(stderr, "%s%s", wrong == 0 ? "" : "the page was not busy during work in flight\n",
            cleared > 0 && !inflight_busy(&one) ? "" : "the page was never cleared\n");
    puts("well");
    return 0;
}
#endif
