/* Logs and bulk output: `logs DIRECTORY` creates a redo log, a binlog with a follower on its own thread, and a file, in
   an empty directory. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pagekeeper.h>

static void check(pk_status status, const char *what) {
  if (status != PK_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, pk_status_name(status), pk_error_message());
    exit(1);
  }
}

static const char *in(const char *directory, const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}

static void redo(const char *directory) {
  pk_redo_options options = PK_REDO_OPTIONS_INIT;
  options.files = 2;
  options.file_bytes = 1 << 20;
  pk_redo *log;
  check(pk_redo_create(directory, &options, &log), "redo_create");
  uint64_t lsn = 0;
  for (int nth = 0; nth < 100; nth++) {
    char record[32];
    int size = snprintf(record, sizeof record, "record %d", nth);
    check(pk_redo_append(log, record, (size_t)size, &lsn), "append");
  }
  check(pk_redo_wait(log, lsn), "wait");
  check(pk_redo_close(log), "close");

  /* Later, or after a crash: */
  check(pk_redo_open(directory, NULL, &log), "redo_open");
  pk_redo_reader *reader;
  check(pk_redo_read(log, pk_redo_checkpoint_lsn(log), &reader), "read");
  const void *bytes;
  size_t size;
  uint64_t next = 0, records = 0;
  pk_status status;
  while ((status = pk_redo_next(reader, &bytes, &size, &next)) == PK_OK) records++;
  if (status != PK_END) check(status, "next");
  pk_redo_reader_close(reader);
  check(pk_redo_checkpoint(log, next), "checkpoint");
  check(pk_redo_close(log), "close");
  printf("%" PRIu64 " records of redo\n", records);
}

static void *follow(void *arg) {
  pk_follower *follower = arg;
  pk_event event;
  uint64_t groups = 0;
  pk_status status;
  while ((status = pk_follower_next(follower, -1, &event)) == PK_OK) groups += (uint64_t)event.ends_group;
  if (status != PK_END) check(status, "follower_next");
  pk_follower_close(follower);
  printf("%" PRIu64 " groups followed\n", groups);
  return NULL;
}

/* Whether a record comes before the one with the number in arg. */
static int is_before(void *arg, const void *bytes, size_t size) {
  uint64_t number = 0;
  memcpy(&number, bytes, size < sizeof number ? size : sizeof number);
  return number < *(uint64_t *)arg;
}

/* Finds a record by its number; then removes the segments that are neither among the last 10 MB nor of this week. */
static void find(pk_binlog *log, uint64_t number) {
  pk_position position, last, week;
  check(pk_binlog_partition_point(log, is_before, &number, &position), "partition_point");
  pk_follower *follower;
  pk_event event;
  check(pk_binlog_follow(log, position, 0, &follower), "follow");
  check(pk_follower_next(follower, 0, &event), "follower_next");
  memcpy(&number, event.record.bytes, sizeof number);
  printf("found %" PRIu64 "\n", number);
  pk_follower_close(follower);
  check(pk_binlog_last_bytes(log, 10000000, &last), "last_bytes");
  check(pk_binlog_since(log, (uint64_t)time(NULL) - 7 * 86400, &week), "since");
  check(pk_binlog_purge(log, last.segment < week.segment ? last : week, 0), "purge");
}

static void binlog(const char *directory) {
  pk_binlog_options options = PK_BINLOG_OPTIONS_INIT;
  options.max_segment_bytes = 64 << 10;
  options.sync_every = 16;
  pk_binlog *log;
  check(pk_binlog_open(directory, &options, &log), "binlog_open");
  pk_position first, end;
  check(pk_binlog_first(log, &first), "first");
  pk_follower *follower;
  check(pk_binlog_follow(log, first, 0, &follower), "follow");
  pthread_t thread;
  if (pthread_create(&thread, NULL, follow, follower) != 0) exit(1);
  for (uint64_t nth = 0; nth < 1000; nth++) {
    pk_record group[2] = {{&nth, sizeof nth}, {&nth, sizeof nth}};
    check(pk_binlog_append(log, group, 2, &end), "append");
  }
  check(pk_binlog_sync(log), "sync");
  find(log, 700);
  check(pk_binlog_close(log), "close");
  if (pthread_join(thread, NULL) != 0) exit(1);
}

static void bulk(const char *path) {
  pk_bulk_options options = PK_BULK_OPTIONS_INIT;
  options.expected_bytes = 3000 * 1000;
  pk_bulk *output;
  check(pk_bulk_create(path, &options, &output), "bulk_create");
  char block[1000];
  memset(block, 'x', sizeof block);
  for (int nth = 0; nth < 3000; nth++) check(pk_bulk_write(output, block, sizeof block), "bulk_write");
  pk_bulk_report report = PK_BULK_REPORT_INIT;
  check(pk_bulk_finish(output, &report), "bulk_finish");

  pk_residency residency = PK_RESIDENCY_INIT;
  check(pk_resident(path, 0, PK_TO_END, &residency), "resident");
  uint64_t loaded, released, kept;
  check(pk_warm(path, 0, PK_TO_END, &loaded), "warm");
  check(pk_release(path, 0, PK_TO_END, -1, &released, &kept), "release");
  printf("%" PRIu64 " bytes of output, %s, %" PRIu64 " kept\n", report.bytes,
         loaded + residency.resident_bytes >= report.bytes ? "warmed" : "not warmed", kept);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: logs DIRECTORY\n");
    return 2;
  }
  redo(in(argv[1], "redo"));
  binlog(in(argv[1], "binlog"));
  bulk(in(argv[1], "000012.sst"));
  return 0;
}
