/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where other processes fetch the descriptors of memory that is shared with
 * them: a thread of this process, on a socket whose name is in the handle. The
 * memory is gone with this process anyway, nothing but the two has to know of
 * it, and the daemon may come and go.
 *
 * Anybody may connect. So nobody is waited for: all visitors are looked after
 * at once, what one of them is sent waits in the socket only as long as he
 * takes it, and one who says nothing goes when he has had his time or when
 * somebody else needs the place. The lock of memory is held for one driver
 * call per block. What a visitor must show is his user and the secret of the
 * handle; the socket's name is no secret.
 */
#define _GNU_SOURCE
#include "ipc/ipc.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client_state.h"
#include "interpose/log.h"

#define VISITORS_MAX 32
#define PATIENCE_MS 2000
#define PAUSE_MS 100                 /* when the program has no descriptor to spare */

struct visitor {
    int socket;
    bool asked;
    struct share_request request;
    size_t index;                    /* of the block that is next */
    uint64_t heard;                  /* when he last did something, in microseconds */
};

static struct {
    pthread_mutex_t lock;            /* protects the following; nothing is taken while it is held */
    bool open;
    int listener;
    struct { uint64_t name[2], asker, owner; } random;
} shop = { .lock = PTHREAD_MUTEX_INITIALIZER };

unsigned share_socket(const uint64_t name[2], struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    /* Abstract: nothing to remove. */
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                          "nvshare-%016llx%016llx", (unsigned long long)name[0],
                          (unsigned long long)name[1]);
    return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (unsigned)length);
}

static bool send_piece(int to, const struct share_piece *piece, int file)
{
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = { (void *)piece, sizeof *piece };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
        };
        memcpy(CMSG_DATA(header), &file, sizeof file);
    }
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *piece;
}

/* Hears what he wants. False: he is to go. */
static bool hear(struct visitor *visitor)
{
    char packet[sizeof visitor->request + 1];        /* a longer one shows as longer */
    ssize_t size = recv(visitor->socket, packet, sizeof packet, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size != (ssize_t)sizeof visitor->request)
        return false;
    memcpy(&visitor->request, packet, sizeof visitor->request);
    visitor->asked = true;
    if (visitor->request.secret == shop.random.asker)
        return true;
    const struct share_piece nothing = { .left = 0 };
    send_piece(visitor->socket, &nothing, -1);       /* he goes in any case */
    return false;
}

/* Gives him the next piece; there is space for it. False: it was the last, or failed. */
static bool give(struct visitor *visitor)
{
    struct share_piece piece;
    int file = share_export(&visitor->request, visitor->index++, &piece);
    piece.secret = shop.random.owner;
    bool sent = send_piece(visitor->socket, &piece, file) && file >= 0;
    if (file >= 0)
        close(file);
    return sent && piece.left > piece.size;
}

static void dismiss(struct visitor *visitor)
{
    shutdown(visitor->socket, SHUT_RDWR);            /* a forked child may have it, too */
    close(visitor->socket);
    visitor->socket = -1;
}

static struct visitor *place(struct visitor *visitors)
{
    struct visitor *best = visitors;
    for (struct visitor *each = visitors; each < visitors + VISITORS_MAX; each++) {
        if (each->socket < 0)
            return each;
        if (each->asked != best->asked ? best->asked : each->heard < best->heard)
            best = each;
    }
    dismiss(best);
    return best;
}

/* Lets one in. False: there was nobody, or cannot be now, for want of descriptors. */
static bool let_in(int listener, struct visitor *visitors, bool *short_of_files)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    const int little = 1;            /* the least there is: a piece or two under way */
    int to = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (to < 0) {
        *short_of_files = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
        return false;
    }
    struct visitor visitor = { .socket = to, .heard = now_microseconds() };
    setsockopt(to, SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
    if (getsockopt(to, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0
        || (peer.uid != geteuid() && peer.uid != 0) || !hear(&visitor))
        dismiss(&visitor);
    else
        *place(visitors) = visitor;
    return true;
}

static void look_after(struct visitor *visitor, bool ready)
{
    uint64_t now = now_microseconds();
    bool stays = now - visitor->heard < PATIENCE_MS * 1000;
    if (ready) {
        visitor->heard = now;
        stays = visitor->asked ? give(visitor) : hear(visitor);
    }
    if (!stays)
        dismiss(visitor);
}

/* A program may close what is not its own, and then have the number for a socket of its own. */
static bool is_ours(int listener)
{
    struct sockaddr_un ours, is;
    unsigned length = share_socket(shop.random.name, &ours);
    socklen_t actual = sizeof is;
    return getsockname(listener, (struct sockaddr *)&is, &actual) == 0 && actual == length
        && memcmp(&ours, &is, length) == 0;
}

static void *give_out(void *argument)
{
    int listener = (int)(intptr_t)argument;
    struct visitor visitors[VISITORS_MAX];
    struct pollfd ready[VISITORS_MAX + 1];           /* the last is the listener */
    bool short_of_files = false;
    for (unsigned i = 0; i < VISITORS_MAX; i++)
        visitors[i] = (struct visitor){ .socket = -1 };
    while (is_ours(listener)) {
        int timeout = short_of_files ? PAUSE_MS : -1;
        for (unsigned i = 0; i < VISITORS_MAX; i++) {
            ready[i] = (struct pollfd){
                .fd = visitors[i].socket, .events = visitors[i].asked ? POLLOUT : POLLIN,
            };
            if (visitors[i].socket >= 0 && timeout < 0)
                timeout = PATIENCE_MS;
        }
        ready[VISITORS_MAX] = (struct pollfd){
            .fd = short_of_files ? -1 : listener, .events = POLLIN,
        };
        if (poll(ready, VISITORS_MAX + 1, timeout) < 0)
            continue;
        for (unsigned i = 0; i < VISITORS_MAX; i++)
            if (visitors[i].socket >= 0)
                look_after(&visitors[i], ready[i].revents != 0);
        short_of_files = false;
        for (unsigned i = 0; i < VISITORS_MAX && ready[VISITORS_MAX].revents != 0; i++)
            if (!is_ours(listener) || !let_in(listener, visitors, &short_of_files))
                break;
    }
    debug("memory is no longer given to other processes: the program has closed the socket");
    for (unsigned i = 0; i < VISITORS_MAX; i++)
        if (visitors[i].socket >= 0)
            dismiss(&visitors[i]);
    pthread_mutex_lock(&shop.lock);
    shop.open = false;
    pthread_mutex_unlock(&shop.lock);
    return NULL;
}

bool shop_own(const struct share_ticket *ticket)
{
    pthread_mutex_lock(&shop.lock);
    bool own = shop.open
        && memcmp(ticket->name, shop.random.name, sizeof shop.random.name) == 0;
    pthread_mutex_unlock(&shop.lock);
    return own;
}

/* Opens it. shop.lock is held. */
static void begin(void)
{
    struct sockaddr_un address;
    sigset_t all, before;
    pthread_t thread;
    if (getrandom(&shop.random, sizeof shop.random, 0) != (ssize_t)sizeof shop.random)
        return;
    unsigned length = share_socket(shop.random.name, &address);
    shop.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (shop.listener >= 0 && bind(shop.listener, (struct sockaddr *)&address, length) == 0
        && listen(shop.listener, SOMAXCONN) == 0)
        shop.open = pthread_create(&thread, NULL, give_out,
                                   (void *)(intptr_t)shop.listener) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (shop.open) {
        pthread_setname_np(thread, "nvshare-ipc");
        pthread_detach(thread);
    } else if (shop.listener >= 0) {
        close(shop.listener);
    }
}

bool shop_open(struct share_ticket *ticket)
{
    int cancel;
    /* A thread cancelled in getrandom() would keep the lock. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&shop.lock);
    if (!shop.open)
        begin();
    memcpy(ticket->name, shop.random.name, sizeof ticket->name);
    ticket->secret = shop.random.owner;
    ticket->request.secret = shop.random.asker;
    bool possible = shop.open;
    pthread_mutex_unlock(&shop.lock);
    pthread_setcancelstate(cancel, NULL);
    return possible;
}

void shop_abandon(void)
{
    if (shop.open && is_ours(shop.listener))
        close(shop.listener);
    shop.open = false;
    pthread_mutex_init(&shop.lock, NULL);            /* whoever held it is not in this process */
}
