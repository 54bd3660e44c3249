/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "block/region.h"
#include "fuzz.h"
#include "driver/driver.h"
#include "driver/real.h"
#include "ipc/ipc_export.h"

#define PIECES_MAX 4

enum lie {
    TRUTH, SHORT, LONG, NO_SECRET, NO_SIZE, ODD_SIZE, LARGER_SIZE, ODD_LEFT, HUGE_LEFT, LESS_LEFT,
    NO_FILE, TWO_FILES, MANY_FILES, NO_MEMORY, PIPE, HANG_UP, FAR_OFFSET, MANY_BYTES, NO_BYTES,
    LIES
};
/* From this value on, the lie is about the allocation, which the importer reads from the first
 * part only. */
#define OF_ALL FAR_OFFSET

static struct {
    int listener;
    struct ipc_ticket ticket;
    size_t pieces;
    CUmemGenericAllocationHandle memory[PIECES_MAX];
    enum lie lie;
    size_t where;                    /* index of the part with the lie */
} liar;

static int file_for(size_t index, bool lies)
{
    int file, ends[2];
    if (lies && liar.lie == NO_MEMORY)
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    if (lies && liar.lie == PIPE) {
        MUST(pipe2(ends, O_CLOEXEC) == 0, "no pipe: %s", strerror(errno));
        close(ends[1]);
        return ends[0];
    }
    succeed(REAL(cuMemExportToShareableHandle)(&file, liar.memory[index],
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "exporting");
    return file;
}

static struct ipc_part say(size_t index, bool lies)
{
    struct ipc_part piece = {
        .secret = liar.ticket.secret, .left = (liar.pieces - index) * PAGE, .size = PAGE,
        .offset = 256, .bytes = liar.pieces * PAGE - 512,
    };
    if (!lies)
        return piece;
    switch (liar.lie) {
    case NO_SECRET: piece.secret ^= 1; break;
    case NO_SIZE: piece.size = 0; break;
    case ODD_SIZE: piece.size -= 4096; break;
    case LARGER_SIZE: piece.size += PAGE; piece.left += PAGE; break;
    case ODD_LEFT: piece.left += 8; break;
    case HUGE_LEFT: piece.left = UINT64_MAX / PAGE * PAGE; break;
    case LESS_LEFT: piece.left -= PAGE; break;
    case FAR_OFFSET: piece.offset = piece.left; break;
    case MANY_BYTES: piece.bytes = UINT64_MAX; break;
    case NO_BYTES: piece.bytes = 0; break;
    default: break;
    }
    return piece;
}

/* Sends one part, with the lie or without. False: the exporter sends no more parts. */
static bool send_part(int to, size_t index)
{
    bool lies = liar.lie != TRUTH && index == liar.where;
    if (lies && liar.lie == HANG_UP)
        return false;
    struct { struct ipc_part piece; char more[8]; } packet = { say(index, lies), { 0 } };
    size_t size = sizeof packet.piece;
    if (lies && (liar.lie == SHORT || liar.lie == LONG))
        size += liar.lie == SHORT ? -8u : 8u;
    size_t count = !lies ? 1 : liar.lie == NO_FILE ? 0 : liar.lie == TWO_FILES ? 2
        : liar.lie == MANY_FILES ? FILES_MAX : 1;
    int files[FILES_MAX];
    for (size_t i = 0; i < count; i++)
        files[i] = file_for(index, lies);
    bool sent = peer_send_files(to, &packet, size, files, count);
    for (size_t i = 0; i < count; i++)
        close(files[i]);
    return sent;
}

static void *answer(void *argument)
{
    (void)argument;
    for (;;) {
        struct ipc_request request;
        int to = accept4(liar.listener, NULL, NULL, SOCK_CLOEXEC);
        if (to < 0)
            return NULL;             /* the listener was shut down */
        if (recv(to, &request, sizeof request, 0) == (ssize_t)sizeof request) {
            MUST(memcmp(&request, &liar.ticket.request, sizeof request) == 0,
                 "it asks for something else");
            for (size_t i = 0; i < liar.pieces && send_part(to, i); i++)
                continue;
        }
        close(to);
    }
}

static void begin(struct input *input)
{
    static uint64_t number;
    struct sockaddr_un address;
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
    };
    liar.lie = (enum lie)(take(input, 1) % LIES);
    liar.pieces = 1 + take(input, 1) % PIECES_MAX;
    liar.where = liar.lie >= OF_ALL ? 0 : take(input, 1) % liar.pieces;
    number++;
    liar.ticket = (struct ipc_ticket){
        .magic = IPC_MAGIC, .name = { (uint64_t)getpid(), number }, .secret = ~number,
        .request = { .secret = 1, .address = 2, .id = 3 },
    };
    unsigned length = ipc_socket(IPC_ABSTRACT, liar.ticket.name, &address);
    liar.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(bind(liar.listener, (struct sockaddr *)&address, length) == 0
         && listen(liar.listener, 4) == 0, "no socket: %s", strerror(errno));
    for (size_t i = 0; i < liar.pieces; i++)
        succeed(REAL(cuMemCreate)(&liar.memory[i], PAGE, &property, 0), "making memory");
}

void liar_step(struct input *input)
{
    CUipcMemHandle handle = { { 0 } };
    CUdeviceptr address, base;
    size_t size;
    pthread_t thread;
    begin(input);
    memcpy(&handle, &liar.ticket, sizeof liar.ticket);
    MUST(pthread_create(&thread, NULL, answer, NULL) == 0, "no thread");
    CUresult result = cuIpcOpenMemHandle_v2(&address, handle, 1);
    MUST((result == CUDA_SUCCESS) == (liar.lie == TRUTH),
         "lie %d in piece %zu of %zu: error %d", (int)liar.lie, liar.where, liar.pieces,
         (int)result);
    if (result == CUDA_SUCCESS) {
        succeed(cuMemGetAddressRange_v2(&base, &size, address + 8), "asking for a range");
        MUST(base == address && size == liar.pieces * PAGE - 512, "a range of %zu bytes", size);
        succeed(cuIpcCloseMemHandle(address), "closing");
    }
    shutdown(liar.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(liar.listener);
    for (size_t i = 0; i < liar.pieces; i++)
        succeed(REAL(cuMemRelease)(liar.memory[i]), "releasing");
}
