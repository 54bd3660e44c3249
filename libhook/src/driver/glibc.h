/* SPDX-License-Identifier: Apache-2.0 */
/* Included first in each file (Makefile): selects the oldest versions of functions that moved into
 * libc in glibc 2.34, so that the library runs from glibc 2.17 on. The references are weak: before
 * 2.34 a program without CUDA may lack these functions, as it is the driver that loads their
 * libraries, and some are missing in musl, which has no driver. With NVSHARE_ANY_GLIBC a sanitizer
 * defines the functions, so no version is selected. */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE                  /* dlinfo(), pthread_setname_np() */
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#if defined(NVSHARE_ANY_GLIBC)
#define VERSION(name, version)
#elif defined(__aarch64__)
#define VERSION(name, version) __asm__(".symver " #name ", " #name "@GLIBC_2.17");
#else
#define VERSION(name, version) __asm__(".symver " #name ", " #name "@" version);
#endif
#define OLDEST(name, version) \
    VERSION(name, version)    \
    extern __typeof__(name) name __attribute__((weak));

OLDEST(dlerror, "GLIBC_2.2.5") OLDEST(dlinfo, "GLIBC_2.3.3") OLDEST(dlopen, "GLIBC_2.2.5")
OLDEST(pthread_attr_destroy, "GLIBC_2.2.5") OLDEST(pthread_attr_getstacksize, "GLIBC_2.2.5")
OLDEST(pthread_attr_init, "GLIBC_2.2.5") OLDEST(pthread_attr_setstacksize, "GLIBC_2.2.5")
OLDEST(pthread_condattr_setclock, "GLIBC_2.3.3") OLDEST(pthread_create, "GLIBC_2.2.5")
OLDEST(pthread_detach, "GLIBC_2.2.5")
OLDEST(pthread_key_create, "GLIBC_2.2.5") OLDEST(pthread_mutex_trylock, "GLIBC_2.2.5")
OLDEST(pthread_once, "GLIBC_2.2.5") OLDEST(pthread_setname_np, "GLIBC_2.12")
OLDEST(pthread_setspecific, "GLIBC_2.2.5") OLDEST(pthread_sigmask, "GLIBC_2.2.5")
OLDEST(pthread_testcancel, "GLIBC_2.2.5")

#if !defined(NVSHARE_ANY_GLIBC)
/* pthread_atfork() calls it; last argument NULL: this library is never unloaded. Not in musl. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
#define pthread_atfork(before, parent, child) \
    (__register_atfork == NULL ? 0 : __register_atfork(before, parent, child, NULL))
#endif
