/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closing: a program that opens the driver as CUDA's runtime does, closes it
 * while it has memory on the card, and opens it again. Says "away" in between.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define SIZE (32u << 20)
#define DEFAULT_STREAM 1

typedef int function();

static void must(int right, const char *what)
{
    if (right)
        return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void *driver;

static function *entry(const char *name)
{
    int (*ask)(const char *, void **, int, unsigned long) =
        (int (*)(const char *, void **, int, unsigned long))dlsym(driver, "cuGetProcAddress");
    void *found = NULL;
    must(ask != NULL && ask(name, &found, 12000, DEFAULT_STREAM) == 0 && found != NULL, name);
    return (function *)found;
}

int main(void)
{
    void *context;
    unsigned long long memory;
    unsigned *words = malloc(SIZE);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    must(driver != NULL, "opening the driver");
    must(entry("cuInit")(0) == 0 && entry("cuDevicePrimaryCtxRetain")(&context, 0) == 0
         && entry("cuCtxSetCurrent")(context) == 0
         && entry("cuMemAlloc")(&memory, (size_t)SIZE) == 0
         && entry("cuMemsetD32")(memory, 0x12345678, (size_t)SIZE / 4) == 0, "beginning");
    must(dlclose(driver) == 0, "closing the driver");
    puts("away");
    fflush(stdout);
    must(getchar() == '\n', "a line");
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    must(driver != NULL && entry("cuMemcpyDtoH")(words, memory, (size_t)SIZE) == 0,
         "opening it again");
    for (unsigned i = 0; i < SIZE / 4; i++)
        must(words[i] == 0x12345678, "a word");
    must(entry("cuMemFree")(memory) == 0 && entry("cuDevicePrimaryCtxRelease")(0) == 0, "the end");
    return dlclose(driver);
}
