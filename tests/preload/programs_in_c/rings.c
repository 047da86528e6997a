/* Reads, writes and syncs that are handed to the kernel by io_submit and io_uring, with calls on the same files between. */
#include "say.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

static char buffers[16][256 * KIB] __attribute__((aligned(4096)));

static void by_aio(const char *name, int flags)
{
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 16, &context) < 0) {
        say("io_setup: %s", errno_text(errno));
        return;
    }
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0600));
    struct iocb blocks[16];
    struct iocb *list[16];
    struct io_event events[16];
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 16; i++) {
            uint64_t at = (round * 8 + i) * sizeof *buffers;
            if (round % 2 == 0)
                fill(buffers[i], sizeof *buffers, at, round);
            blocks[i] = (struct iocb){
                .aio_lio_opcode = round % 2 ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_data = i,
                .aio_buf = (uintptr_t)buffers[i], .aio_nbytes = sizeof *buffers, .aio_offset = at,
            };
            list[i] = &blocks[i];
        }
        TRY(syscall(SYS_io_submit, context, 16, list));
        long long total = 0;
        int done = 0;
        while (done < 16) {
            int got = MUST(syscall(SYS_io_getevents, context, 1, 16, events, NULL));
            for (int i = 0; i < got; i++)
                total += events[i].res;
            done += got;
        }
        say("total %lld", total);
        if (round % 2)
            for (int i = 0; i < 16; i++)
                say("sum %08x", checksum(buffers[i], sizeof *buffers));
        TRY(fdatasync(fd));
        TRY(pread(fd, buffers[0], 4096, 8192));
    }
    blocks[0] = (struct iocb){.aio_lio_opcode = IOCB_CMD_FSYNC, .aio_fildes = fd};
    TRY(syscall(SYS_io_submit, context, 1, list));
    MUST(syscall(SYS_io_getevents, context, 1, 16, events, NULL));
    say("fsync: %lld", (long long)events[0].res);
    blocks[0].aio_fildes = 999;
    TRY(syscall(SYS_io_submit, context, 1, list));
    TRY(syscall(SYS_io_submit, context, -1, list));
    TRY(syscall(SYS_io_submit, context, 1, bad_pointer()));
    TRY(syscall(SYS_io_submit, 0, 1, list));
    TRY(close(fd));
    TRY(syscall(SYS_io_destroy, context));
    show(name);
}

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static int ring_open(struct ring *ring)
{
    struct io_uring_params params = {0};
    ring->fd = syscall(SYS_io_uring_setup, 16, &params);
    if (ring->fd < 0 || !(params.features & IORING_FEAT_SINGLE_MMAP)) {
        say("io_uring_setup: %s", errno_text(errno));
        return 0;
    }
    size_t size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
    ring->sqes = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      ring->fd, IORING_OFF_SQES);
    ring->sq_tail = (unsigned *)(base + params.sq_off.tail);
    ring->sq_mask = (unsigned *)(base + params.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(base + params.sq_off.array);
    ring->cq_head = (unsigned *)(base + params.cq_off.head);
    ring->cq_tail = (unsigned *)(base + params.cq_off.tail);
    ring->cq_mask = (unsigned *)(base + params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(base + params.cq_off.cqes);
    return 1;
}

static void ring_push(struct ring *ring, struct io_uring_sqe entry)
{
    unsigned tail = *ring->sq_tail, slot = tail & *ring->sq_mask;
    ring->sqes[slot] = entry;
    ring->sq_array[slot] = slot;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

/* Submits, waits for all, and has the results by their numbers. */
static void ring_run(struct ring *ring, int count, int *results)
{
    TRY(syscall(SYS_io_uring_enter, ring->fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0));
    for (int done = 0; done < count; done++) {
        unsigned head = *ring->cq_head;
        while (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
            MUST(syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
        struct io_uring_cqe *event = &ring->cqes[head & *ring->cq_mask];
        results[event->user_data] = event->res;
        __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    }
}

static void by_ring(const char *name)
{
    struct ring ring;
    int results[16];
    if (!ring_open(&ring))
        return;
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 16; i++) {
            uint64_t at = (round * 8 + i) * sizeof *buffers;
            if (round % 2 == 0)
                fill(buffers[i], sizeof *buffers, at, round);
            ring_push(&ring, (struct io_uring_sqe){
                .opcode = round % 2 ? IORING_OP_READ : IORING_OP_WRITE, .fd = fd, .addr = (uintptr_t)buffers[i],
                .len = sizeof *buffers, .off = at, .user_data = i,
            });
        }
        ring_run(&ring, 16, results);
        for (int i = 0; i < 16; i++)
            say("%d, sum %08x", results[i], checksum(buffers[i], sizeof *buffers));
        MUST(pwrite(fd, "between", 7, round * 4096));
        TRY(fdatasync(fd));
    }
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_FSYNC, .fd = fd, .user_data = 0});
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_FADVISE, .fd = fd, .fadvise_advice = POSIX_FADV_DONTNEED, .user_data = 1});
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)name, .open_flags = O_RDONLY, .user_data = 2});
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = 999, .addr = (uintptr_t)buffers, .len = 10, .user_data = 3});
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_FALLOCATE, .fd = fd, .off = 0, .addr = 20 * MIB, .user_data = 4});
    ring_run(&ring, 5, results);
    for (int i = 0; i < 5; i++)
        say("%d", results[i]);
    /* Opened by the ring, used by calls, closed by the ring, and the number used again. */
    int opened = results[2];
    unsigned sum = 2166136261u;
    for (ssize_t got; (got = MUST(read(opened, buffers[1], sizeof *buffers))) > 0;)
        sum = checksum_on(sum, buffers[1], got);
    say("sum %08x", sum);
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = opened, .user_data = 0});
    ring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = fd, .user_data = 1});
    ring_run(&ring, 2, results);
    say("%d %d", results[0], results[1]);
    TRY(fsync(fd));
    int second = MUST(open("second", O_RDWR | O_CREAT, 0600));
    for (int i = 0; i < 30; i++)
        MUST(write(second, buffers[2], sizeof *buffers));
    TRY(close(second));
    TRY(close(ring.fd));
    show("second");
    show(name);
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    by_aio(name, 0);
    by_aio(name, O_DIRECT);
    by_ring(name);
    return 0;
}
