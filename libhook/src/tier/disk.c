/* SPDX-License-Identifier: Apache-2.0 */
/* The tier of a file on a disk, one file for each client. The daemon opens it unlinked, so no file
 * remains after a crash. Blocks are written from host memory (block/store.c). The file keeps the
 * bytes of a loaded block: if unchanged, the block is evicted again without a copy.
 *
 * Each of a few threads transfers one chunk at a time; all take chunks of the same block
 * before chunks of the next block. Writers write from page-locked host memory, readers read into a
 * page-locked slot that the service thread copies to the card. So a disk that hangs stops only
 * these threads and the loads of its blocks. Registered memory is page-aligned, as O_DIRECT needs.
 *
 * No write begins while the size of the file changes. The file grows by fallocate(), because a
 * file system carries out writes that extend a file one at a time. It shrinks only to the size
 * that the daemon allows, or to the end of the last used page: with the mount option `discard`,
 * ftruncate() took 0.2 s for each GiB, and writes waited for it.
 *
 * The program may close any descriptor, or put another file at its number, which a write would
 * destroy. Readers and writers therefore have a descriptor table of their own with only the file in
 * it, and the number in the program's table is closed at once. Readers and writers
 * call no driver function and print nothing.
 *
 * A chunk with a wrong checksum, or that cannot be read, makes its block lost: the block is never
 * mapped again (swap.c), and the driver reports any use of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/forked.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/own_thread.h"
#include "gate/client.h"
#include "tier/host.h"
#include "tier/ranges.h"
#include "tier/tier.h"

#ifdef __SANITIZE_THREAD__
/* Raw system calls, because TSan would take these threads' descriptors for the program's of equal
 * number, and report races of writes that block/store.c discards (overwritten blocks). */
#define pread(...) syscall(SYS_pread64, __VA_ARGS__)
#define pwrite(...) syscall(SYS_pwrite64, __VA_ARGS__)
#define UNCHECKED __attribute__((no_sanitize("thread")))
#else
#define UNCHECKED
#endif
#ifndef SYS_close_range
#define SYS_close_range 436          /* Linux 5.9; the headers may be older than the kernel */
#endif
#define UNSHARE 2u                   /* CLOSE_RANGE_UNSHARE */

#define CHUNK ((size_t)4 << 20)
#define READERS 8
#define WRITERS 8
#define NICER 10
#define GROWTH ((uint64_t)4 << 30)   /* bytes by which fallocate() extends the file */
#define LANES 8

/* A place in the file, and the transfer of a block to or from it. */
struct extent {
    struct tier_write transfer;      /* first member; of a load, too */
    struct disk *disk;
    uint64_t offset;                 /* bytes from the file's begin */
    size_t begun;                    /* bytes with transfer begun */
    struct extent *next;             /* in the queue of writes, or of loads */
    const char *memory;              /* source of a write */
    CUdeviceptr address;             /* destination of a load on the card */
    CUstream stream;
    CUresult result;
    uint64_t sums[];                 /* a checksum for each chunk */
};

static struct disk {
    struct client *client;
    int descriptor;                  /* number of the file in the readers' and writers' table */
    int handle;                      /* handle of own_file.h while the file is being opened */
    int opened;                      /* result of opening: 0 or an errno; -1: not finished */
    bool quits;
    struct ranges space;             /* unused offsets of the file; the last range has no end */
    uint64_t used;                   /* bytes in use */
    uint64_t grown;                  /* size of the file, bytes, as requested from the kernel */
    bool resizes;                    /* a thread changes the file's size: no write may begin */
    struct extent *writes;      /* queue of writes with chunks not begun */
    struct extent *reads;       /* queue of loads with chunks not begun */
    struct place staging;            /* page-locked memory of the slots; `tier` NULL: none */
    struct slot {
        struct extent *extent;  /* the block being read; NULL: the slot is free */
        size_t offset, size;
        bool filled;
    } slots[READERS];
    unsigned threads;
} *disks[CLIENTS_MAX];

static pthread_cond_t work = PTHREAD_COND_INITIALIZER;

/* A chunk's checksum. Multiplication by an odd number and rotation are invertible, so a single
 * changed word always changes the sum. LANES independent sums run as fast as multiplications do. */
UNCHECKED static uint64_t sum(const char *memory, size_t size)
{
    uint64_t lanes[LANES], word;
    for (unsigned lane = 0; lane < LANES; lane++)
        lanes[lane] = lane + 1;
    for (size_t at = 0; at < size; at += sizeof lanes)
        for (unsigned lane = 0; lane < LANES; lane++) {
            memcpy(&word, memory + at + lane * sizeof word, sizeof word);
            word = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15u;
            lanes[lane] = word << 29 | word >> 35;
        }
    for (unsigned lane = 1; lane < LANES; lane++)
        lanes[0] = (lanes[0] ^ lanes[lane]) * 0x9e3779b97f4a7c15u + (lanes[0] >> 35);
    return lanes[0];
}

/* Reads into `into`, or writes from `from` if `into` is NULL. Returns 0 or an errno. */
static int transfer(const struct disk *disk, const char *from, char *into, size_t size, uint64_t at)
{
    for (size_t done = 0; done < size;) {
        off_t where = (off_t)(at + done);
        ssize_t count = into != NULL ? pread(disk->descriptor, into + done, size - done, where)
                                     : pwrite(disk->descriptor, from + done, size - done, where);
        if (count == 0 || (count < 0 && errno != EINTR))
            return count == 0 ? EIO : errno;
        done += count > 0 ? (size_t)count : 0;
    }
    return 0;
}

/* Begins to transfer the next chunk of a queue; returns its extent. */
static struct extent *begin_chunk(struct extent **queue, size_t *offset, size_t *size)
{
    struct extent *extent = *queue;
    size_t left = extent->transfer.size - extent->begun;
    *offset = extent->begun;
    *size = left < CHUNK ? left : CHUNK;
    extent->begun += *size;
    if (extent->begun == extent->transfer.size)
        *queue = extent->next;
    return extent;
}

static void append(struct extent **queue, struct extent *extent)
{
    extent->begun = 0;
    extent->transfer.left = extent->transfer.size;
    extent->transfer.error = 0;
    extent->next = NULL;
    while (*queue != NULL)
        queue = &(*queue)->next;
    *queue = extent;
    pthread_cond_broadcast(&work);
}

/* Writes a chunk. memory_lock is held, but released during the write. */
static void write_next(struct disk *disk)
{
    size_t offset, size;
    struct extent *extent = begin_chunk(&disk->writes, &offset, &size);
    const char *memory = extent->memory + offset;
    int error = extent->transfer.error;
    pthread_mutex_unlock(&memory_lock);
    if (error == 0 && extent->transfer.cancelled)
        error = ECANCELED;
    if (error == 0) {
        extent->sums[offset / CHUNK] = sum(memory, size);
        error = transfer(disk, memory, NULL, size, extent->offset + offset);
    }
    pthread_mutex_lock(&memory_lock);
    if (extent->transfer.error == 0)
        extent->transfer.error = error;
    extent->transfer.left -= size;
}

/* Grows or cuts the file to `size` bytes; memory_lock is released during the system call. */
static void resize(struct disk *disk, uint64_t size)
{
    uint64_t grown = disk->grown;
    disk->resizes = true;
    pthread_mutex_unlock(&memory_lock);
    /* If fallocate() fails, the write reports it. If ftruncate() fails, writes reuse the space. */
    if ((size > grown ? fallocate(disk->descriptor, 0, (off_t)grown, (off_t)(size - grown))
                      : ftruncate(disk->descriptor, (off_t)size)) != 0)
        errno = 0;
    pthread_mutex_lock(&memory_lock);
    disk->grown = size;
    disk->resizes = false;
    pthread_cond_broadcast(&work);
}

static void read_next(struct disk *disk, struct slot *slot)
{
    struct extent *extent = begin_chunk(&disk->reads, &slot->offset, &slot->size);
    size_t offset = slot->offset;
    slot->extent = extent;
    slot->filled = false;
    char *memory = disk->staging.memory + (slot - disk->slots) * (ptrdiff_t)CHUNK;
    pthread_mutex_unlock(&memory_lock);
    int error = transfer(disk, NULL, memory, slot->size, extent->offset + offset);
    if (error == 0 && sum(memory, slot->size) != extent->sums[offset / CHUNK])
        error = EBADMSG;
    pthread_mutex_lock(&memory_lock);
    if (error != 0)
        extent->transfer.error = error;
    slot->filled = true;
    pthread_cond_broadcast(&memory_changed);
}

static struct slot *find_slot(struct disk *disk, bool filled)
{
    for (struct slot *slot = disk->slots; slot < disk->slots + READERS; slot++)
        if (filled ? slot->extent != NULL && slot->filled : slot->extent == NULL)
            return slot;
    return NULL;
}

/* When the file's last thread ends, the kernel closes the file with the threads' table. */
static void end(struct disk *disk)
{
    if (--disk->threads > 0)
        return;
    ranges_clear(&disk->space);
    free(disk);
}

static void *read_chunks(void *argument)
{
    struct disk *disk = argument;
    own_thread_begins("nvshare-read");
    LOCKED(memory_lock);
    while (!disk->quits) {
        struct slot *slot = disk->reads != NULL ? find_slot(disk, false) : NULL;
        if (slot != NULL)
            read_next(disk, slot);
        else
            pthread_cond_wait(&work, &memory_lock);
    }
    end(disk);
    return NULL;
}

/* The size that the file should have before the next write. A write that fails or is cancelled
 * needs no space; a write begun before the daemon lowered the allowed size may exceed that size. */
static uint64_t due_size(const struct disk *disk)
{
    const struct extent *write = disk->writes;
    uint64_t allowed = tier_use(disk->client, &tier_disk)->limit / PAGE * PAGE;
    if (write == NULL) {
        uint64_t end = disk->space.sorted[disk->space.count - 1]->address;
        uint64_t least = end > allowed ? end : allowed;
        return least < disk->grown ? least : disk->grown;
    }
    uint64_t end = write->offset + write->transfer.size;
    if (end <= disk->grown || write->transfer.cancelled || write->transfer.error != 0)
        return disk->grown;
    return end + GROWTH < allowed ? end + GROWTH : end < allowed ? allowed : end;
}

static void *write_chunks(void *argument)
{
    struct disk *disk = argument;
    own_thread_begins("nvshare-write");
    if (nice(NICER) == -1)
        errno = 0;                   /* ignored: the thread writes with normal priority */
    LOCKED(memory_lock);
    while (!disk->quits) {
        uint64_t size = due_size(disk);
        if (disk->resizes || (disk->writes == NULL && size == disk->grown))
            pthread_cond_wait(&work, &memory_lock);
        else if (size != disk->grown)
            resize(disk, size);
        else
            write_next(disk);
    }
    end(disk);
    return NULL;
}

/* Gives this thread and the threads that it starts a descriptor table with only the file. */
static int own_table(const struct disk *disk)
{
    unsigned number = (unsigned)disk->descriptor;
    if (syscall(SYS_close_range, number + 1, ~0u, UNSHARE) != 0
        || (number > 0 && syscall(SYS_close_range, 0u, number - 1, 0u) != 0))
        return errno;
    /* The program may have replaced the descriptor before the table was copied. */
    return own_file_descriptor(disk->handle) == disk->descriptor ? 0 : EBADF;
}

static void *start(void *argument)
{
    struct disk *disk = argument;
    pthread_t thread;
    unsigned count = 0;
    own_thread_begins("nvshare-disk");
    int error = own_table(disk);
    while (error == 0 && count < READERS + WRITERS - 1) {
        error = own_thread_start(&thread, count < READERS ? read_chunks : write_chunks, disk);
        if (error == 0) {
            pthread_detach(thread);
            count++;
        }
    }
    pthread_mutex_lock(&memory_lock);
    disk->threads += count;          /* a thread subtracts itself at its end, under memory_lock */
    disk->quits = error != 0;
    disk->opened = error;
    pthread_cond_broadcast(&work);
    pthread_cond_broadcast(&memory_changed);
    pthread_mutex_unlock(&memory_lock);
    return write_chunks(disk);
}

static int open_file(struct client *client, int descriptor)
{
    struct disk *before = disks[client->index];
    if (before != NULL && (descriptor < 0 || before->used > 0))
        return 0;
    if (descriptor < 0)
        return EBADF;
    struct disk *disk = calloc(1, sizeof *disk);
    pthread_t thread;
    if (disk == NULL || !ranges_give(&disk->space, 0, UINT64_MAX, 0, UINT64_MAX)) {
        free(disk);
        return ENOMEM;
    }
    disk->client = client;
    disk->threads = 1;               /* the thread that opens the file */
    disk->opened = -1;
    {
        UNFORKED;
        disk->handle = own_file_add(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    }
    disk->descriptor = own_file_descriptor(disk->handle);
    int error = disk->descriptor < 0 ? errno : own_thread_start(&thread, start, disk);
    if (error == 0) {
        pthread_detach(thread);
        disk->threads++;
        while (disk->opened < 0)
            pthread_cond_wait(&memory_changed, &memory_lock);
        error = disk->opened;
    }
    own_file_close(disk->handle);
    if (error == 0) {
        disks[client->index] = disk;
        if (before != NULL)
            before->quits = true;
        pthread_cond_broadcast(&work);
    }
    end(disk);
    return error;
}

static bool is_open(const struct client *client)
{
    return disks[client->index] != NULL;
}

static struct tier_write *write_block(struct client *client, size_t size, const char *memory)
{
    uint64_t most = tier_use(client, &tier_disk)->limit;
    struct disk *disk = disks[client->index];
    CUdeviceptr offset;
    struct extent *extent = calloc(1, sizeof *extent + (size + CHUNK - 1) / CHUNK
                                                          * sizeof *extent->sums);
    if (extent == NULL || !ranges_take(&disk->space, size, most, &offset)) {
        free(extent);
        return NULL;
    }
    disk->used += size;
    extent->disk = disk;
    extent->offset = offset;
    extent->transfer.size = size;
    extent->memory = memory;
    append(&disk->writes, extent);
    return &extent->transfer;
}

/* Writers cut unused space at the file's end beyond the limit. */
static void wake_writers(struct client *client)
{
    (void)client;
    pthread_cond_broadcast(&work);
}

static void keep(struct tier_write *write, struct place *place)
{
    place->record = write;
}

static void discard(struct tier_write *write)
{
    struct extent *extent = (struct extent *)write;
    struct disk *disk = extent->disk;
    ranges_give(&disk->space, extent->offset, write->size, 0, UINT64_MAX);
    disk->used -= write->size;
    if (tier_use(disk->client, &tier_disk)->limit < disk->grown)
        wake_writers(disk->client);
    free(extent);
}

static void give(struct client *client, size_t size, struct place *place)
{
    (void)client, (void)size;
    discard(place->record);
}

/* A LOAD must always be possible, so staging memory may exceed the order's limit of host memory. */
static bool take_staging(struct client *client, struct disk *disk)
{
    const size_t size = READERS * CHUNK;
    if (disk->staging.tier == NULL
        && (host_place(client, size, &disk->staging)
            || (host_grow(client, size, client->memory.host + size)
                && host_place(client, size, &disk->staging))))
        disk->staging.tier = &tier_host;
    return disk->staging.tier != NULL && (host_register(&disk->staging), true);
}

static void free_staging(struct client *client)
{
    struct disk *disk = disks[client->index];
    if (disk != NULL && disk->staging.tier != NULL) {
        host_unplace(client, READERS * CHUNK, &disk->staging);
        disk->staging.tier = NULL;
    }
}

/* Queues the load of a block; settle() waits until the block is loaded. */
static CUresult queue_read(struct place *place, bool out, CUdeviceptr address, size_t offset,
                           size_t size, CUstream stream)
{
    struct extent *extent = place->record;
    (void)offset, (void)size;
    if (out)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!take_staging(extent->disk->client, extent->disk))
        return CUDA_ERROR_OUT_OF_MEMORY;
    extent->address = address;
    extent->stream = stream;
    extent->result = CUDA_SUCCESS;
    append(&extent->disk->reads, extent);
    return CUDA_SUCCESS;
}

/* Copies a filled slot to the block on the card. */
static void copy(struct disk *disk, struct slot *slot)
{
    struct extent *extent = slot->extent;
    const char *memory = disk->staging.memory + (slot - disk->slots) * (ptrdiff_t)CHUNK;
    bool good = extent->transfer.error == 0 && extent->result == CUDA_SUCCESS;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = !good ? extent->result
        : REAL(cuMemcpyHtoDAsync_v2)(extent->address + slot->offset, memory, slot->size,
                                     extent->stream);
    if (good && result == CUDA_SUCCESS)
        result = REAL(cuStreamSynchronize)(extent->stream);
    pthread_mutex_lock(&memory_lock);
    extent->result = result;
    extent->transfer.left -= slot->size;
    slot->extent = NULL;
    pthread_cond_broadcast(&work);
}

static enum settled settle(struct place *place, CUdeviceptr address)
{
    struct extent *extent = place->record;
    struct disk *disk = extent->disk;
    LOCKED(memory_lock);
    while (extent->transfer.left > 0) {
        struct slot *slot = find_slot(disk, true);
        if (slot != NULL)
            copy(disk, slot);
        else
            pthread_cond_wait(&memory_changed, &memory_lock);
    }
    if (extent->transfer.error == 0)
        return extent->result == CUDA_SUCCESS ? SETTLED : UNSETTLED;
    complain("%zu bytes of this program's GPU memory at %#llx are lost, as they cannot be read "
             "back from disk: %s. Its use of them fails", extent->transfer.size,
             (unsigned long long)address,
             extent->transfer.error == EBADMSG ? "they have changed there"
                                               : error_text(extent->transfer.error));
    return LOST;
}

static const struct tier_store file = {
    .open = open_file, .is_open = is_open, .limited = wake_writers, .write = write_block,
    .keep = keep, .discard = discard,
};

const struct tier tier_disk = {
    .give = give, .copy = queue_read, .settle = settle, .keeps = true, .store = &file,
    .loaded = free_staging,
};
