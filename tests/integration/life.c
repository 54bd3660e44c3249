/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life CASE: holds memory on the card while it forks, executes, handles signals or exits, by the
 * case. After it has printed "away", the test has its memory evicted; a line on stdin makes it
 * continue. Exit code 0: every byte was right.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holder.h"

static pthread_barrier_t barrier;

static void *submit_and_go(void *argument)
{
    CUdeviceptr more;
    (void)argument;
    must(cuCtxSetCurrent(context) == 0 && cuMemsetD32Async(memory, 0x12345678, SIZE / 4, NULL) == 0
         && cuMemAlloc_v2(&more, SIZE) == 0, "submitting");
    pthread_testcancel();
    return NULL;
}

static pthread_t thread_at_the_gate(void)
{
    pthread_t thread;
    begin();
    pause_here("away");
    must(pthread_create(&thread, NULL, submit_and_go, NULL) == 0, "a thread");
    pause_here("waiting");
    return thread;
}

static void plain(void)
{
    begin();
    pause_here("away");
    check();
    must(cuMemFree_v2(memory) == 0, "freeing");
}

/* Frees memory at exit, as destructors of the CUDA runtime do. */
static void free_at_exit(void)
{
    must(cuMemFree_v2(memory) == 0, "freeing at exit");
}

static void leave(void)
{
    atexit(free_at_exit);
    thread_at_the_gate();
}

static volatile sig_atomic_t interrupts;

static void count(int number)
{
    (void)number;
    interrupts++;
}

static void interrupted(void)
{
    struct sigaction action = { .sa_handler = count };   /* without SA_RESTART */
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
    begin();
    pause_here("away");
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    check();
    must(interrupts > 0, "no signal came");
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
}

static void ends(pid_t child, const char *what)
{
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child, what);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0, what);
}

static void on_signal(void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler };
    must(sigaction(SIGUSR1, &action, NULL) == 0, "a handler");
}

static volatile sig_atomic_t is_child;
static volatile pid_t child_of_handler;

static void fork_inside(int number)
{
    (void)number;
    child_of_handler = fork();
    is_child = child_of_handler == 0;
    if (!is_child && write(STDOUT_FILENO, "forked\n", 7) != 7)
        _exit(1);
}

/* Forks inside a call: the call continues in parent and child; the driver refuses the child's. */
static void fork_in_a_call(void)
{
    char word;
    on_signal(fork_inside);
    begin();
    pause_here("away");
    int result = cuMemcpyDtoH_v2(&word, memory, 1);
    if (is_child)
        _exit(result != 0 ? 0 : 1);
    must(result == 0 && word == 0x78, "what the parent sees");
    ends(child_of_handler, "a child that was in a call");
    check();
}

static void leave_by_exit(int number)
{
    exit(number);
}

/* Ends the program by a signal handler inside a call that waits. */
static void leave_inside(void)
{
    atexit(free_at_exit);
    on_signal(leave_by_exit);
    begin();
    pause_here("away");
    check();
    must(0, "it did not wait");
}

static void check_at_exit(void)
{
    check();
    free_at_exit();
}

/* Waits in a destructor that runs after main(). */
static void wait_at_exit(void)
{
    begin();
    atexit(check_at_exit);
    pause_here("away");
}

/* Starts programs without CUDA while a thread waits at the gate. */
static void bear(const char *self)
{
    extern char **environ;
    char *arguments[] = { (char *)self, "nothing", NULL };
    pid_t child;
    begin();
    pause_here("away");
    pthread_t thread;
    must(pthread_create(&thread, NULL, check_in_thread, NULL) == 0, "a thread");
    pause_here("waiting");
    for (int i = 0; i < 20; i++) {
        if ((child = vfork()) == 0) {
            execv(self, arguments);
            _exit(127);
        }
        ends(child, "a program after vfork");
        must(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0, "spawning");
        ends(child, "a program that was spawned");
        if ((child = fork()) == 0) {
            execv(self, arguments);
            _exit(127);
        }
        ends(child, "a program after fork");
    }
    must(system("exit 7") == 7 << 8, "a shell");
    pause_here("borne");
    must(pthread_join(thread, NULL) == 0, "joining");
    check();
}

/* Executes another program in this process while a thread waits at the gate. */
static void become(const char *self)
{
    char *arguments[] = { (char *)self, "threads", NULL };
    thread_at_the_gate();
    execv(self, arguments);
    must(0, "becoming another program");
}

static void *wait_and_check(void *argument)
{
    (void)argument;
    pthread_barrier_wait(&barrier);
    check();
    return NULL;
}

static void threads(void)
{
    pthread_t thread[4];
    pthread_barrier_init(&barrier, NULL, 5);
    for (int i = 0; i < 4; i++)
        must(pthread_create(&thread[i], NULL, wait_and_check, NULL) == 0, "a thread");
    begin();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

int main(int count_of_arguments, char **arguments)
{
    const char *what = count_of_arguments > 1 ? arguments[1] : "";
    WHEN("plain", plain());
    WHEN("leave", leave());
    WHEN("interrupted", interrupted());
    WHEN("fork-inside", fork_in_a_call());
    WHEN("exit", leave_inside());
    WHEN("late", wait_at_exit());
    WHEN("bear", bear(arguments[0]));
    WHEN("nothing", return 0);
    WHEN("become", become(arguments[0]));
    WHEN("threads", threads());
    must(0, "what is this to do");
    return 0;
}
