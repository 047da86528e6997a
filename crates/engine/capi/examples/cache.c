/* A page cache: reads, a batch, a page in place, asynchronous reads, a new budget. `cache FILE` reads a file in each of
   these ways and prints the sum of its bytes. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pagekeeper.h>

#define PIECE 10000
#define MANY 64

/* Exits if a call failed. */
static void check(pk_status status, const char *what) {
  if (status != PK_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, pk_status_name(status), pk_error_message());
    exit(1);
  }
}

static uint64_t sum_of(const unsigned char *bytes, size_t size) {
  uint64_t sum = 0;
  for (size_t at = 0; at < size; at++) sum += bytes[at];
  return sum;
}

static uint64_t by_reads(pk_file *file) {
  unsigned char buffer[PIECE];
  uint64_t sum = 0, offset = 0;
  size_t read;
  do {
    check(pk_file_read(file, offset, buffer, sizeof buffer, &read), "read");
    sum += sum_of(buffer, read);
    offset += read;
  } while (read > 0);
  return sum;
}

static uint64_t by_batches(pk_file *file) {
  unsigned char *buffers = malloc((size_t)MANY * PIECE);
  pk_read reads[MANY];
  uint64_t sum = 0;
  for (uint64_t offset = 0; offset < pk_file_size(file);) {
    for (size_t nth = 0; nth < MANY; nth++, offset += PIECE) {
      reads[nth].offset = offset;
      reads[nth].buffer = buffers + nth * PIECE;
      reads[nth].size = PIECE;
    }
    check(pk_file_read_many(file, reads, MANY), "read_many");
    for (size_t nth = 0; nth < MANY; nth++) sum += sum_of(reads[nth].buffer, reads[nth].read);
  }
  free(buffers);
  return sum;
}

static uint64_t by_pages(pk_file *file, uint64_t page_size) {
  uint64_t sum = 0;
  for (uint64_t number = 0; number * page_size < pk_file_size(file); number++) {
    pk_page *page;
    check(pk_page_get(file, number, &page), "page");
    sum += sum_of(pk_page_data(page), pk_page_size(page));
    pk_page_release(page);
  }
  return sum;
}

/* An event loop: reads in flight, and an eventfd that becomes readable when some are over. */
static uint64_t by_queue(pk_file *file) {
  pk_queue *queue;
  check(pk_queue_open(&queue), "queue");
  uint64_t pieces = (pk_file_size(file) + PIECE - 1) / PIECE, sum = 0, begun = 0, over = 0;
  unsigned char *buffers = malloc((size_t)MANY * PIECE);
  while (over < pieces) {
    for (; begun < pieces && begun < over + MANY; begun++)
      check(pk_queue_read(queue, file, begun * PIECE, buffers + begun % MANY * PIECE, PIECE, begun), "queue_read");
    struct pollfd ready = {.fd = pk_queue_fd(queue), .events = POLLIN};
    if (poll(&ready, 1, -1) < 0 && errno != EINTR) exit(1);
    /* Collects all of them: their buffers are reused. */
    while (over < begun) {
      pk_completion done[8];
      size_t count;
      check(pk_queue_collect(queue, done, 8, -1, &count), "collect");
      for (size_t nth = 0; nth < count; nth++, over++) {
        check(done[nth].status, "a read of the queue");
        sum += sum_of(buffers + done[nth].user_data % MANY * PIECE, done[nth].read);
      }
    }
  }
  pk_queue_close(queue);
  free(buffers);
  return sum;
}

/* Reads with callbacks, which come from any thread. */
struct waiting {
  pthread_mutex_t lock;
  pthread_cond_t over;
  size_t left;
  pk_status worst;
};

static void done(void *arg, pk_status status, size_t read) {
  struct waiting *waiting = arg;
  (void)read;
  pthread_mutex_lock(&waiting->lock);
  if (status != PK_OK) waiting->worst = status;
  if (--waiting->left == 0) pthread_cond_signal(&waiting->over);
  pthread_mutex_unlock(&waiting->lock);
}

static uint64_t by_callbacks(pk_file *file) {
  uint64_t size = pk_file_size(file);
  unsigned char *all = calloc(size + 1, 1);
  struct waiting waiting = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, (size + PIECE - 1) / PIECE, PK_OK};
  for (uint64_t offset = 0; offset < size; offset += PIECE) {
    uint64_t length = size - offset < PIECE ? size - offset : PIECE;
    check(pk_file_read_async(file, offset, all + offset, length, done, &waiting), "read_async");
  }
  pthread_mutex_lock(&waiting.lock);
  while (waiting.left > 0) pthread_cond_wait(&waiting.over, &waiting.lock);
  pthread_mutex_unlock(&waiting.lock);
  check(waiting.worst, "a read that calls back");
  uint64_t sum = sum_of(all, size);
  free(all);
  return sum;
}

/* Rejects pages that begin with the byte 0xee. */
static int verify(void *arg, const char *path, uint64_t page, const void *bytes, size_t size, char *reason, size_t reason_size) {
  (void)path;
  (void)page;
  atomic_fetch_add((atomic_ulong *)arg, 1);
  if (size > 0 && *(const unsigned char *)bytes == 0xee) {
    snprintf(reason, reason_size, "begins with ee");
    return 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: cache FILE\n");
    return 2;
  }
  pk_cache_options options = PK_CACHE_OPTIONS_INIT;
  options.memory = 8 << 20;
  atomic_ulong verified = 0;
  options.verifier = verify;
  options.verifier_arg = &verified;
  options.backend = PK_BACKEND_THREADS;
  pk_cache *cache;
  check(pk_cache_open(&options, &cache), "cache");
  pk_file *file;
  check(pk_file_open(cache, argv[1], &file), "open");

  pk_cache_stats stats = PK_CACHE_STATS_INIT;
  check(pk_cache_get_stats(cache, &stats), "stats");
  check(pk_file_prefetch(file, 0, 1 << 20), "prefetch");
  printf("%" PRIu64 " by reads\n", by_reads(file));
  printf("%" PRIu64 " by batches\n", by_batches(file));
  check(pk_cache_set_memory(cache, 2 << 20), "set_memory");
  printf("%" PRIu64 " by pages\n", by_pages(file, stats.page_size));
  check(pk_cache_set_memory(cache, 8 << 20), "set_memory");
  printf("%" PRIu64 " by a queue\n", by_queue(file));
  printf("%" PRIu64 " by callbacks\n", by_callbacks(file));

  check(pk_cache_get_stats(cache, &stats), "stats");
  if (atomic_load(&verified) == 0 || stats.hits + stats.misses == 0 || stats.resident_pages > stats.capacity_pages) return 1;
  /* A page outlives its file and its cache. */
  pk_page *page;
  check(pk_page_get(file, 0, &page), "page");
  pk_file_close(file);
  pk_cache_close(cache);
  printf("%zu bytes stay\n", pk_page_size(page));
  pk_page_release(page);
  return 0;
}
