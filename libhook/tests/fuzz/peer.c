/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "driver/lookup.h"
#include "fuzz.h"
#include "gate/packet.h"

static int listener = -1;
static int connection = -1;
static uint64_t number;              /* of the last INTRODUCE */
static uint64_t introduced;          /* number of the last HELLO */

/* Of driver/lookup.c, which is not linked here. */
void *lookup_next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

void peer_listen(void)
{
    static char own[] = "/tmp/nvshare-fuzz-XXXXXX";
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *folder = getenv("NVSHARE_FUZZ_FOLDER");
    if (folder == NULL)
        folder = mkdtemp(own);
    MUST(folder != NULL, "no folder for the socket: %s", strerror(errno));
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder);
    setenv("NVSHARE_SOCKET", address.sun_path, 1);
    setenv("NVSHARE_SIM_DIR", folder, 1);
    setenv("NVSHARE_SIM_GPUS", "1", 1);
    setenv("NVSHARE_SIM_MEMORY", "256M", 1);
    setenv("NVSHARE_SIM_COPY_RATE", "0", 1);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address) == 0
         && listen(listener, 4) == 0, "no socket: %s", strerror(errno));
}

void peer_hang_up(void)
{
    if (connection >= 0)
        close(connection);
    connection = -1;
}

/* libFuzzer's alarm interrupts poll() once a minute. */
static bool comes(int socket, int timeout_ms)
{
    struct pollfd ready = { .fd = socket, .events = POLLIN };
    int count;
    do
        count = poll(&ready, 1, timeout_ms);
    while (count < 0 && errno == EINTR);
    return count == 1;
}

void peer_accept(void)
{
    if (connection >= 0)
        return;
    MUST(comes(listener, PATIENCE_MS), "the hook does not come back");
    connection = accept(listener, NULL, NULL);
    MUST(connection >= 0, "accept: %s", strerror(errno));
}

bool peer_send_files(int socket, void *packet, size_t size, const int *files, size_t count)
{
    union { char space[CMSG_SPACE(FILES_MAX * sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = { packet, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(header), files, count * sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

void peer_send(const void *packet, size_t size)
{
    peer_accept();
    /* The hook may have disconnected because of an earlier packet. */
    if (send(connection, packet, size, MSG_NOSIGNAL) < 0)
        peer_hang_up();
}

void peer_send_order(const struct nvshare_order *order)
{
    char packet[NVSHARE_PACKET_LONGEST];
    peer_send(packet, packet_write(&packet_orders, order, order->version, packet));
}

static void order(unsigned type, uint64_t pairs, uint64_t room)
{
    struct nvshare_order order = {
        .type = (uint16_t)type, .version = NVSHARE_PROTOCOL_VERSION, .number = pairs,
        .room = room, .host = 2 * CARD, .flags = type == NVSHARE_LIMITS ? NVSHARE_GRANTED : 0,
    };
    if (type == NVSHARE_LIMITS)
        order.limits = (struct nvshare_limits){
            .commit = MOST, .most = MOST, .total = CARD, .host_slab = 8 * MIB,
        };
    peer_send_order(&order);
}

static void understand(const struct nvshare_report *report, bool right)
{
    /* After a connection without an order the hook tries the other version. */
    MUST(report->version == NVSHARE_PROTOCOL_VERSION || report->version == NVSHARE_PROTOCOL_OLDEST,
         "version %u", report->version);
    MUST(report->type >= NVSHARE_HELLO && report->type <= NVSHARE_WAITING,
         "a hook does not send type %u", report->type);
    const struct nvshare_memory *memory = &report->memory;
    MUST(memory->resident <= memory->allocated && memory->resident + memory->pinned <= CARD,
         "resident %llu pinned %llu allocated %llu", (unsigned long long)memory->resident,
         (unsigned long long)memory->pinned, (unsigned long long)memory->allocated);
    if (report->type == NVSHARE_HELLO)
        introduced = report->number;
    if (!right)
        return;
    if (report->type == NVSHARE_HELLO && report->number == 0)
        order(NVSHARE_LIMITS, 0, 0);
    else if (report->type == NVSHARE_COMMIT)
        order(NVSHARE_LIMITS, report->number, 0);
    else if (report->type == NVSHARE_MEMORY
             && (memory->resident < memory->allocated
                 || memory->resident + memory->pinned + memory->pending > memory->room))
        order(NVSHARE_LOAD, 1, CARD - 32 * MIB);
}

void peer_read(bool right, int timeout_ms)
{
    for (int records = 0; records < 1000; records++, timeout_ms = 0) {
        if (connection < 0 || !comes(connection, timeout_ms))
            return;
        char packet[NVSHARE_PACKET_LONGEST];
        struct nvshare_report report;
        ssize_t size = recv(connection, packet, sizeof packet, MSG_TRUNC);
        if (size <= 0) {
            peer_hang_up();
            return;
        }
        MUST(packet_read(&packet_reports, packet, (size_t)size, &report, sizeof report),
             "a packet of %zd bytes", size);
        understand(&report, right);
    }
}

static time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

void peer_introduce(bool right)
{
    time_t end = now() + PATIENCE_MS / 1000;
    for (number++; introduced != number;) {
        order(NVSHARE_INTRODUCE, number, 0);
        while (connection >= 0 && introduced != number) {
            MUST(now() < end, "the hook does not answer INTRODUCE");
            peer_read(right, 1000);
        }
    }
}

void peer_put_right(void)
{
    peer_introduce(true);
    order(NVSHARE_LIMITS, 0, 0);
    order(NVSHARE_LOAD, 1, CARD - 32 * MIB);
    order(NVSHARE_RUN, 0, 0);
}

void peer_evict_all(void)
{
    order(NVSHARE_STOP, 0, 0);
    order(NVSHARE_EVICT, 1, 0);
    peer_introduce(true);
}
