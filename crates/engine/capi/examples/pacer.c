/* An engine's own output, paced: `pacer FILE` writes a file in pieces, and pauses while others wait for its disk. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pagekeeper.h>

enum { BYTES = 3000000 };

static void check(pk_status status, const char *what) {
  if (status != PK_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, pk_status_name(status), pk_error_message());
    exit(1);
  }
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_for(uint64_t ns) {
  struct timespec rest = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  nanosleep(&rest, NULL);
}

/* Writes one piece and makes it durable. Returns how long the disk took. */
static uint64_t write_piece(int file, const char *bytes, size_t size, off_t offset) {
  if (pwrite(file, bytes, size, offset) != (ssize_t)size) exit(1);
  uint64_t begun = now_ns();
  if (fdatasync(file) != 0) exit(1); /* or sync_file_range(2) */
  return now_ns() - begun;
}

static void write_paced(int file, const char *bytes, pk_pacer *pacer) {
  size_t written = 0;
  while (written < BYTES) {
    size_t size = (size_t)pk_pacer_piece(pacer);
    if (size > BYTES - written) size = BYTES - written;
    pk_written_part part = PK_WRITTEN_PART_INIT;
    part.bytes = size;
    part.took_min_ns = part.busy_ns = write_piece(file, bytes + written, size, (off_t)written);
    uint64_t pause;
    check(pk_pacer_written(pacer, &part, &pause), "written");
    pause_for(pause);
    written += size;
  }
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: pacer FILE\n");
    return 2;
  }
  int file = open(argv[1], O_WRONLY | O_CREAT | O_EXCL, 0666);
  char *bytes = malloc(BYTES);
  if (file < 0 || bytes == NULL) return 1;
  memset(bytes, 'x', BYTES);
  pk_pacer *pacer; /* one for each disk */
  check(pk_pacer_new(&pacer), "new");
  write_paced(file, bytes, pacer);

  /* A quick part, then one that took long: somebody else waits. */
  pk_pacer *other;
  check(pk_pacer_new(&other), "new");
  uint64_t quick_pause, late_pause;
  pk_written_part part = PK_WRITTEN_PART_INIT;
  part.bytes = pk_pacer_piece(other);
  part.took_min_ns = 2000000;
  check(pk_pacer_written(other, &part, &quick_pause), "written");
  part.took_min_ns = 20000000;
  check(pk_pacer_written(other, &part, &late_pause), "written");
  part.bytes = 0;
  pk_status refused = pk_pacer_written(other, &part, &late_pause);
  printf("%d bytes written, pauses of %" PRIu64 " and %" PRIu64 " ms, %s\n", BYTES, quick_pause / 1000000,
         late_pause / 1000000, pk_status_name(refused));
  pk_pacer_free(other);
  pk_pacer_free(pacer);
  free(bytes);
  return close(file) == 0 ? 0 : 1;
}
