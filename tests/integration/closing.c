/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closing driver|plugin FILE: opens the driver as CUDA's runtime does, or a plugin (plugin.c), and
 * closes it while the program has memory on the card. Prints "away" before it continues.
 */
#include <dlfcn.h>

#include "holder.h"

#define DEFAULT_STREAM 1

typedef int function();

static void *driver;

static function *entry(const char *name)
{
    int (*ask)(const char *, void **, int, unsigned long) =
        (int (*)(const char *, void **, int, unsigned long))dlsym(driver, "cuGetProcAddress");
    void *found = NULL;
    must(ask != NULL && ask(name, &found, 12000, DEFAULT_STREAM) == 0 && found != NULL, name);
    return (function *)found;
}

static int close_driver(void)
{
    const char *file = "libcuda.so.1";
    unsigned *words = malloc(SIZE);
    driver = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    must(driver != NULL, "opening the driver");
    must(entry("cuInit")(0) == 0 && entry("cuDevicePrimaryCtxRetain")(&context, 0) == 0
         && entry("cuCtxSetCurrent")(context) == 0
         && entry("cuMemAlloc")(&memory, (size_t)SIZE) == 0
         && entry("cuMemsetD32")(memory, 0x12345678, (size_t)SIZE / 4) == 0, "beginning");
    must(dlclose(driver) == 0, "closing the driver");
    pause_here("away");
    driver = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    must(driver != NULL && entry("cuMemcpyDtoH")(words, memory, (size_t)SIZE) == 0,
         "opening it again");
    for (unsigned i = 0; i < SIZE / 4; i++)
        must(words[i] == 0x12345678, "a word");
    must(entry("cuMemFree")(memory) == 0 && entry("cuDevicePrimaryCtxRelease")(0) == 0, "the end");
    return dlclose(driver);
}

/* Closes the plugin while a thread of the plugin waits for the card. */
static int close_plugin(const char *file)
{
    int right = 0;
    void *plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    must(plugin != NULL, "opening the plugin");
    int (*begin)(void) = (int (*)(void))dlsym(plugin, "plugin_begin");
    int (*work)(int *) = (int (*)(int *))dlsym(plugin, "plugin_work");
    must(begin != NULL && work != NULL && begin(), "beginning");
    pause_here("away");
    must(work(&right) && dlclose(plugin) == 0, "closing the plugin");
    must(dlopen(file, RTLD_NOW | RTLD_NOLOAD) == NULL, "it is still there");
    must(right, "what it saw");
    return 0;
}

int main(int count, char **arguments)
{
    must(count > 1, "what is this to do");
    if (strcmp(arguments[1], "plugin") == 0)
        return close_plugin(arguments[2]);
    return close_driver();
}
