/* `forks WAY DIRECTORY` opens a handle of each kind, forks children that make every call with it, continues, and is
   killed; `forks found DIRECTORY` then counts the remaining records. Ways: fork, twice (a child of a child), threads
   (others append and read meanwhile; as many forks as PAGEKEEPER_FORKS says), exec. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pagekeeper.h>

enum { FILE_BYTES = 1 << 20, PAGE = 4096 };

static char directory[3000];
static pk_cache *cache;
static pk_file *file, *owned;
static pk_queue *queue;
static pk_bulk *bulk;
static pk_redo *redo;
static pk_binlog *binlog;
static pk_store *store;
/* Acknowledgements that another thread may still make: nothing is given up in the ring, which must not become full. */
static _Atomic int turns = 4;

static const char *in(const char *name) {
  static _Thread_local char path[4096];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}

static void check(pk_status status, const char *what) {
  if (status == PK_OK) return;
  printf("%s: %s: %s\n", what, pk_status_name(status), pk_error_message());
  fflush(stdout);
  _exit(1);
}

/* Appends one record to each log and makes one commit, all durable. */
static void acknowledge(void) {
  uint64_t lsn, pages = 0;
  check(pk_redo_append(redo, "a record", 8, &lsn), "append");
  check(pk_redo_wait(redo, lsn), "wait");
  pk_record record = {"a record", 8};
  check(pk_binlog_append(binlog, &record, 1, NULL), "binlog");
  pk_write_txn *txn;
  check(pk_store_begin_write(store, &txn), "begin");
  check(pk_write_allocate(txn, &pages), "allocate");
  check(pk_write_commit(txn, PK_DURABLE, NULL), "commit");
}

static void *work(void *arg) {
  for (;;) {
    char buffer[PAGE];
    size_t read;
    pk_cache_stats stats = PK_CACHE_STATS_INIT;
    check(pk_file_read(file, (uint64_t)rand() % (FILE_BYTES - PAGE), buffer, sizeof buffer, &read), "read");
    check(pk_cache_get_stats(cache, &stats), "stats");
    if (arg != NULL && turns > 0) {
      turns--;
      acknowledge();
    }
  }
  return NULL;
}

static int wrong = 0;
static void refused(pk_status status, const char *what) {
  if (status == PK_FORKED) return;
  char line[100];
  int size = snprintf(line, sizeof line, "%s in a child: %s\n", what, pk_status_name(status));
  if (write(1, line, (size_t)size) < size) _exit(1);
  wrong = 1;
}

static void use(void) {
  char buffer[PAGE];
  size_t read;
  uint64_t number;
  refused(pk_file_read(file, 0, buffer, sizeof buffer, &read), "a read");
  refused(pk_file_read(file, 5, buffer, 2 * sizeof buffer / 3, &read), "a read across");
  pk_read reads[1] = {{0, buffer, sizeof buffer, 0, PK_OK}};
  refused(pk_file_read_many(file, reads, 1), "reads");
  pk_page *page;
  refused(pk_page_get(file, 0, &page), "a page");
  pk_file *other;
  refused(pk_file_open(cache, in("file"), &other), "an open");
  refused(pk_file_open_owned(cache, in("other"), 0, 10, &other), "an open to write");
  refused(pk_file_write_pages(owned, 0, buffer, sizeof buffer, 0), "pages");
  refused(pk_file_discard(owned, 0, 1), "a discard");
  refused(pk_file_sync(owned), "a file's sync");
  refused(pk_file_prefetch(file, 0, PAGE), "a prefetch");
  pk_cache_stats stats = PK_CACHE_STATS_INIT;
  refused(pk_cache_get_stats(cache, &stats), "counts");
  refused(pk_cache_set_memory(cache, 4 << 20), "another budget");
  refused(pk_queue_read(queue, file, 0, buffer, sizeof buffer, 1), "a read by a queue");
  pk_completion completion;
  refused(pk_queue_collect(queue, &completion, 1, -1, &read), "a queue");
  refused(pk_bulk_write(bulk, buffer, sizeof buffer), "output");
  refused(pk_redo_append(redo, "b", 1, &number), "append");
  refused(pk_redo_wait(redo, 0), "wait");
  refused(pk_redo_sync(redo, 0), "sync");
  refused(pk_redo_checkpoint(redo, 0), "checkpoint");
  pk_redo_reader *reader;
  refused(pk_redo_read(redo, 0, &reader), "a reader");
  pk_record record = {"b", 1};
  pk_position position;
  refused(pk_binlog_append(binlog, &record, 1, NULL), "binlog");
  refused(pk_binlog_sync(binlog), "its sync");
  refused(pk_binlog_rotate(binlog), "rotation");
  refused(pk_binlog_end(binlog, &position), "its end");
  pk_store_stat stat = PK_STORE_STAT_INIT;
  refused(pk_store_get_stat(store, &stat), "figures");
  pk_write_txn *txn;
  refused(pk_store_begin_write(store, &txn), "begin");
  refused(pk_store_begin_write_timeout(store, 0, &txn), "begin in time");
  pk_read_txn *snapshot;
  refused(pk_store_begin_read(store, &snapshot), "a snapshot");
  refused(pk_store_sync(store), "the store's sync");
  refused(pk_store_verify(store, NULL), "verify");
  refused(pk_store_backup(store, in("copy"), &number), "backup");
}

static void close_all(void) {
  pk_queue_close(queue);
  pk_file_close(file);
  pk_file_close(owned);
  pk_cache_close(cache);
  pk_bulk_abandon(bulk);
  refused(pk_redo_close(redo), "the redo log's close");
  refused(pk_binlog_close(binlog), "the binlog's close");
  refused(pk_store_close(store), "the store's close");
}

static void finish(void) { refused(pk_bulk_finish(bulk, NULL), "the end of output"); }

static int of_child(void (*act)(void), int depth) {
  uint64_t own = pk_process_number();
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    if (own == pk_process_number()) _exit(2);
    if (depth > 1) _exit(of_child(act, depth - 1));
    act();
    _exit(wrong);
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child) return 3;
  if (status != 0) printf("a child's status is %d\n", status);
  return status != 0;
}

static void open_all(int create) {
  pk_cache_options cache_options = PK_CACHE_OPTIONS_INIT;
  cache_options.memory = 4 << 20;
  pk_redo_options redo_options = PK_REDO_OPTIONS_INIT;
  redo_options.files = 2;
  redo_options.file_bytes = getenv("PAGEKEEPER_FORKS") != NULL ? 64 << 20 : 1 << 20;
  pk_store_options store_options = PK_STORE_OPTIONS_INIT;
  store_options.journal_bytes = 1 << 20;
  if (create) {
    check(pk_redo_create(in("redo"), &redo_options, &redo), "create");
    check(pk_bulk_create(in("bulk"), NULL, &bulk), "output");
    check(pk_bulk_write(bulk, directory, sizeof directory), "output");
    check(pk_cache_open(&cache_options, &cache), "cache");
    check(pk_file_open(cache, in("file"), &file), "open");
    check(pk_file_open_owned(cache, in("owned"), 2, 10, &owned), "open");
    check(pk_queue_open(&queue), "queue");
  } else {
    check(pk_redo_open(in("redo"), NULL, &redo), "open");
  }
  check(pk_binlog_open(in("binlog"), NULL, &binlog), "binlog");
  check(pk_store_open(in("store"), &store_options, &store), "store");
}

static int found(void) {
  open_all(0);
  pk_redo_reader *reader;
  const void *bytes;
  size_t size;
  uint64_t records = 0, events = 0;
  check(pk_redo_read(redo, pk_redo_checkpoint_lsn(redo), &reader), "read");
  while (pk_redo_next(reader, &bytes, &size, NULL) == PK_OK) records++;
  pk_redo_reader_close(reader);
  pk_position first;
  pk_follower *follower;
  pk_event event;
  check(pk_binlog_first(binlog, &first), "first");
  check(pk_binlog_follow(binlog, first, 0, &follower), "follow");
  while (pk_follower_next(follower, 0, &event) == PK_OK) events++;
  pk_follower_close(follower);
  pk_store_stat stat = PK_STORE_STAT_INIT;
  check(pk_store_get_stat(store, &stat), "figures");
  check(pk_store_verify(store, NULL), "verify");
  printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", records, events, stat.seq);
  check(pk_redo_close(redo), "close");
  check(pk_binlog_close(binlog), "close");
  check(pk_store_close(store), "close");
  return 0;
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  snprintf(directory, sizeof directory, "%s", arguments[2]);
  if (strcmp(arguments[1], "found") == 0) return found();
  FILE *bytes = fopen(in("file"), "w");
  for (int at = 0; bytes != NULL && at < FILE_BYTES; at++) fputc(at % 251, bytes);
  if (bytes == NULL || fclose(bytes) != 0) return 1;
  open_all(1);
  int threads = strcmp(arguments[1], "threads") == 0, acknowledged = 0;
  pthread_t thread;
  for (int nth = 0; threads && nth < 2; nth++)
    if (pthread_create(&thread, NULL, work, nth == 0 ? NULL : &threads) != 0) return 1;
  void (*const acts[])(void) = {use, close_all, finish};
  /* The threads append meanwhile. */
  const char *forks = threads ? getenv("PAGEKEEPER_FORKS") : NULL;
  int rounds = forks != NULL ? atoi(forks) / 3 + 1 : threads + 1, between = forks != NULL ? 0 : 4;
  for (int round = 0; round < rounds; round++)
    for (int nth = 0; nth < 3; nth++) {
      turns++;
      acknowledge();
      acknowledged++;
      if (strcmp(arguments[1], "exec") == 0) {
        pid_t child = vfork();
        if (child == 0) {
          execl("/bin/true", "true", (char *)NULL);
          _exit(1);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) return 1;
      } else if (of_child(acts[nth], strcmp(arguments[1], "twice") == 0 ? 2 : 1) != 0) {
        fflush(stdout);
        _exit(1);
      }
      for (int more = 0; more < between; more++, acknowledged++) acknowledge();
    }
  printf("%d\n", acknowledged);
  fflush(stdout);
  kill(getpid(), SIGKILL);
  return 1;
}
