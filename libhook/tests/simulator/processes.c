/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes on one GPU: they see each other's memory go and come. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int wire[2];                  /* [0]: ours, [1]: the child's */

static void say(int end, char word)
{
    CHECK(write(wire[end], &word, 1) == 1);
}

static char hear(int end)
{
    char word;
    CHECK(read(wire[end], &word, 1) == 1);
    return word;
}

static pid_t start(void (*body)(void))
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wire) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);    /* it outlives no failed test */
        body();
        _exit(0);
    }
    return child;
}

/* Holds half the card in every kind of allocation until it is killed. */
static void holder(void)
{
    CUdeviceptr memory, range;
    begin(0);
    OK(cuMemAlloc(&memory, 256 * MIB));
    OK(cuMemAddressReserve(&range, 256 * MIB, 0, 0, 0));
    put_block(range, 256 * MIB);
    say(1, 'h');
    pause();
}

static void accounting(void)
{
    pid_t child = start(holder);
    CHECK(hear(0) == 'h');
    begin(0);
    CHECK(free_memory() < 512 * MIB);
    CUdeviceptr memory;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, 512 * MIB));
    CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, 512 * MIB, &properties, 0));
    kill(child, SIGKILL);
    siginfo_t info;
    /* Dead is enough: its memory is free before anybody has waited for it. */
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
    OK(cuMemAlloc(&memory, 900 * MIB));
    CHECK(waitpid(child, NULL, 0) == child);
    OK(cuMemFree(memory));
    CHECK(free_memory() == 1016 * MIB);      /* all but this process's context */
}

static void send_file(int file)
{
    char byte = 'f', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &file, sizeof file);
    CHECK(sendmsg(wire[1], &message, 0) == 1);
}

static int receive_file(void)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    int file;
    CHECK(recvmsg(wire[0], &message, MSG_CMSG_CLOEXEC) == 1);
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    return file;
}

static void exporter(void)
{
    CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;
    int file;
    begin(0);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 64 * MIB, &properties, 0));
    OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 64 * MIB, 0, handle, 0));
    OK(allow(0, range, 64 * MIB));
    OK(launch(fill, NULL, range, 64 * MIB / 8, 42, 0));
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_file(file);
    CHECK(hear(1) == 'w');
    uint64_t got;
    OK(cuMemcpyDtoH(&got, range + 8, 8));
    CHECK(got == 7);
    say(1, 'd');
    pause();
}

/* Counted once while two hold it, and still while the importer alone does. */
static void exports(void)
{
    pid_t child = start(exporter);
    int file = receive_file();
    begin(0);
    size_t before = free_memory();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    CHECK(free_memory() == before);
    OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 64 * MIB, 0, handle, 0));
    OK(allow(0, range, 64 * MIB));
    uint64_t got, seven = 7;
    OK(cuMemcpyDtoH(&got, range, 8));
    CHECK(got == 42);
    OK(cuMemcpyHtoD(range + 8, &seven, 8));
    say(0, 'w');
    CHECK(hear(0) == 'd');
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(free_memory() == 1016 * MIB - 64 * MIB);
    OK(cuMemcpyDtoH(&got, range + 8, 8));
    CHECK(got == 7);
    OK(cuMemUnmap(range, 64 * MIB));
    OK(cuMemRelease(handle));
    CHECK(free_memory() == 1016 * MIB);
}

static void ipc_giver(void)
{
    CUdeviceptr small, memory;
    CUipcMemHandle handle;
    begin(0);
    OK(cuMemAlloc(&small, 4096));
    OK(cuMemAlloc(&memory, 8192));
    OK(launch(fill, NULL, memory, 1024, 9, 0));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&handle, memory));
    CHECK(write(wire[1], &handle, sizeof handle) == sizeof handle);
    CHECK(hear(1) == 'w');
    uint64_t got;
    OK(cuMemcpyDtoH(&got, memory + 8, 8));
    CHECK(got == 3);
    OK(cuMemFree(memory));
    OK(cuMemFree(small));
}

static void ipc(void)
{
    pid_t child = start(ipc_giver);
    CUipcMemHandle handle;
    CUdeviceptr memory;
    uint64_t got, three = 3;
    int status;
    CHECK(recv(wire[0], &handle, sizeof handle, MSG_WAITALL) == sizeof handle);
    begin(0);
    OK(cuIpcOpenMemHandle(&memory, handle, 1));
    OK(cuMemcpyDtoH(&got, memory, 8));
    CHECK(got == 9);
    OK(cuMemcpyHtoD(memory + 8, &three, 8));
    say(0, 'w');
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cuIpcCloseMemHandle(memory));
    CHECK(free_memory() == 1016 * MIB);
}

/* Each in a process of its own, so that each begins with an idle card. */
static void run(const char *name, void (*test)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        test();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) {
        fprintf(stderr, "processes: %s failed\n", name);
        exit(1);
    }
}

int main(void)
{
    run("accounting", accounting);
    run("exports", exports);
    run("ipc", ipc);
    puts("processes: right");
    return 0;
}
