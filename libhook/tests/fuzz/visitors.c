/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver/own_file.h"
#include "fuzz.h"
#include "ipc/ipc_import.h"
#include "ipc/ipc_export.h"

#define VISITORS 48                  /* more than the exporter serves at once */
#define TRIES 1000
#define FILES 3

static struct {
    int socket;                      /* 0: not connected */
    bool knows;                      /* the client has sent the right secret */
} visitors[VISITORS];

static void leave(unsigned visitor)
{
    if (visitors[visitor].socket != 0)
        close(visitors[visitor].socket);
    visitors[visitor].socket = 0;
}

static void come(const struct ipc_ticket *ticket, unsigned visitor)
{
    struct sockaddr_un address;
    unsigned length = ipc_socket(IPC_ABSTRACT, ticket->name, &address);
    leave(visitor);
    visitors[visitor].socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    visitors[visitor].knows = false;
    MUST(connect(visitors[visitor].socket, (struct sockaddr *)&address, length) == 0,
         "nobody gives out memory any more: %s", strerror(errno));
}

/* Sends a packet with `files` descriptors; the exporter may have disconnected. */
static void say(unsigned visitor, void *packet, size_t size, unsigned files)
{
    const int same[FILES] = { STDERR_FILENO, STDERR_FILENO, STDERR_FILENO };
    if (visitors[visitor].socket != 0)
        peer_send_files(visitors[visitor].socket, packet, size, same, files);
}

static void ask(const struct ipc_ticket *ticket, unsigned visitor, struct input *input)
{
    struct ipc_request request = ticket->request;
    uint8_t change = (uint8_t)take(input, 1);
    if (change % 4 == 1)
        request.secret ^= (uint64_t)1 << change % 64;
    if (change % 4 == 2)
        request.address += take(input, 8);
    if (change % 4 == 3)
        request.id += take(input, 1);
    visitors[visitor].knows = visitors[visitor].knows || change % 4 != 1;
    say(visitor, &request, sizeof request, change / 64);
}

static void garbage(unsigned visitor, struct input *input)
{
    uint8_t packet[2 * sizeof(struct ipc_request)];
    size_t size = take(input, 1) % (sizeof packet + 1);
    for (size_t i = 0; i < size; i++)
        packet[i] = (uint8_t)take(input, 1);
    say(visitor, packet, size, size % (FILES + 1));
}

/* Reads an answer; a descriptor may come only after the right secret. */
static void hear(unsigned visitor)
{
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control;
    struct ipc_part piece;
    struct iovec part = { &piece, sizeof piece };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = &control, .msg_controllen = sizeof control.space,
    };
    if (visitors[visitor].socket == 0
        || recvmsg(visitors[visitor].socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
        return;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL)
        return;
    int file;
    memcpy(&file, CMSG_DATA(header), sizeof file);
    close(file);
    MUST(visitors[visitor].knows, "memory was given to one visitor did not show the secret");
}

void visitors_fetch(const struct ipc_ticket *ticket, uint64_t bytes)
{
    uint64_t got = 0, left = 1;
    bool again = true;
    for (unsigned tries = 0; again && tries < TRIES; tries++) {
        struct ipc_part piece;
        int from = ipc_client_begin(ticket, &again);
        int file = from < 0 ? -1 : ipc_client_part(from, ticket, &piece, &again);
        while (file >= 0) {
            own_file_close(file);
            got += piece.size;
            left = piece.left - piece.size;
            file = left != 0 ? ipc_client_part(from, ticket, &piece, &again) : -1;
        }
        if (from >= 0)
            own_file_close(from);
        again = again && got == 0;
    }
    MUST(got == bytes && (left == 0 || bytes == 0), "an honest one got %llu of %llu bytes",
         (unsigned long long)got, (unsigned long long)bytes);
}

void visitors_step(const struct ipc_ticket *ticket, struct input *input)
{
    uint8_t what = (uint8_t)take(input, 1);
    unsigned visitor = (unsigned)take(input, 1) % VISITORS;
    switch (what % 8) {
    case 0: case 1:
        come(ticket, visitor);
        break;
    case 2:
        come(ticket, visitor);
        ask(ticket, visitor, input);
        break;
    case 3:
        ask(ticket, visitor, input);
        break;
    case 4:
        garbage(visitor, input);
        break;
    case 5:
        hear(visitor);
        break;
    case 6:
        for (unsigned i = 0; i < VISITORS; i++)
            come(ticket, i);
        break;
    case 7:
        leave(visitor);
    }
}

void visitors_leave(void)
{
    for (unsigned i = 0; i < VISITORS; i++)
        leave(i);
}
