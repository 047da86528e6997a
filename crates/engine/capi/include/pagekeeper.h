/*
 * pagekeeper.h: a page cache in user space, logs that release their pages, bulk output, a page store that
 * opens at once after a crash, and the residency of files in the kernel's page cache. The C interface of
 * libpagekeeper.
 *
 * Rules for every function:
 *
 * - It returns PK_OK or an error. After an error, pk_error_message() and pk_error_number() describe it, on
 *   the same thread, until the next call of that thread that fails. Output values go through pointers, which
 *   are not written if the call fails.
 * - Offsets and lengths are in bytes. Paths are strings of bytes that end with a zero byte, as in system
 *   calls. NULL for a required handle, path or buffer is PK_MISUSE.
 * - A handle belongs to its opener, and is closed by its own pk_..._close() or similar function, once. These
 *   functions accept NULL, and then do nothing. A closed handle must not be used again; a library built by
 *   PK_CHECKED=1 make capi returns PK_MISUSE then, and never frees the memory of a handle.
 * - Several threads may use a handle at once, except handles with a position or changes of their own:
 *   pk_bulk, pk_redo_reader, pk_follower, pk_write_txn, pk_cursor. If two threads use one of these at the
 *   same time, the second gets PK_MISUSE. Every handle may be passed from one thread to another. A handle
 *   must not be closed while another thread is in a call with it: give pk_follower_next() a timeout.
 * - Nothing is thrown and nothing unwinds through these calls. No signal is used. Nothing is written to
 *   stdout or stderr, except for a defect of the library, which is PK_INTERNAL. Arguments of one handle do
 *   not affect another. The threads of a handle end when it is closed. One thread that all bulk output shares
 *   stays, and so does the library: dlclose() leaves it loaded.
 * - Fork: a handle belongs to the process that opened it. In a forked child, each call that would read,
 *   write, wait or count with it returns PK_FORKED, at once and without effect, and closing it does nothing.
 *   The child opens its own handles. A child that lives on without exec keeps its parent's logs and stores
 *   locked, even after the parent's end.
 * - Structures begin with their size, so that later versions can append fields: initialise them with the
 *   macro PK_..._INIT, or zero them and set struct_size. 0 in an option means its default.
 *
 * Within one soname (PK_VERSION_MAJOR), functions and structures are only added; symbols have versions.
 */
#ifndef PAGEKEEPER_H
#define PAGEKEEPER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PK_VERSION_MAJOR 0
#define PK_VERSION_MINOR 1
#define PK_VERSION_PATCH 0

/* The version of the loaded library, as "0.1.0". The string lives as long as the library is loaded. */
const char *pk_version(void);

/* ---------------------------------------------------------------- errors */

typedef enum pk_status {
  PK_OK = 0,
  PK_MISUSE = 1,      /* an argument is NULL, invalid or out of range, or another thread uses the handle */
  PK_IO = 2,          /* a system call failed: pk_error_number() has errno */
  PK_CORRUPT = 3,     /* the data on the disk is not the data that was written */
  PK_NOT_FOUND = 4,   /* no such file, log, store, page or position */
  PK_EXISTS = 5,      /* something exists already */
  PK_LOCKED = 6,      /* in use by another process or handle */
  PK_CHANGED = 7,     /* the file changed since it was opened: open it again */
  PK_TOO_LARGE = 8,   /* the record, group or transaction is too large; nothing of it was written */
  PK_FULL = 9,        /* the ring is full until the checkpoint is moved, or the disk is full */
  PK_POISONED = 10,   /* a write or sync failed before: nothing is accepted until it is opened again */
  PK_READ_ONLY = 11,  /* opened read-only */
  PK_TOO_OLD = 12,    /* the snapshot, position or base is no longer kept */
  PK_NO_MEMORY = 13,  /* out of memory */
  PK_UNSUPPORTED = 14,/* not supported by the kernel or file system; or a structure of a later version of this header */
  PK_REJECTED = 15,   /* the verifier rejected a page */
  PK_END = 16,        /* no more data: the end of the log, or it was closed */
  PK_TIMED_OUT = 17,  /* nothing arrived in time */
  PK_INTERNAL = 18,   /* a defect of the library, or a panic in it */
  PK_FORKED = 19      /* opened by the process that this one was forked from; only that process may use it */
} pk_status;

/* The error of the last call that failed on this thread, in plain words and UTF-8; "" if none. It lives until
   the next failed call. */
const char *pk_error_message(void);
/* errno of the last call that failed on this thread, or 0 if no system call failed. */
int pk_error_number(void);
/* The name of a status, as "PK_IO"; "unknown" for an invalid number. */
const char *pk_status_name(pk_status status);
/* A number of the calling process that differs from those of the processes it was forked from. With it, code
   on top of these handles can detect a fork. Makes no system call. */
uint64_t pk_process_number(void);

/* ---------------------------------------------------------------- page cache */

/*
 * A page cache for files that do not change while they are open: SST files, segments, blobs. They are read by
 * direct I/O, so that the kernel's page cache holds nothing of them. The budget limits how much is cached.
 */
typedef struct pk_cache pk_cache;
typedef struct pk_file pk_file;
typedef struct pk_page pk_page;

/* How missing pages are read. */
typedef enum pk_backend {
  PK_BACKEND_AUTO = 0,    /* direct I/O by io_uring, or by threads if that is not available */
  PK_BACKEND_URING = 1,
  PK_BACKEND_THREADS = 2,
  PK_BACKEND_BUFFERED = 3 /* through the kernel's page cache: pages may be cached twice */
} pk_backend;

/* The source of the memory for pages. */
typedef enum pk_huge_pages {
  PK_HUGE_PAGES_TRANSPARENT = 0,
  PK_HUGE_PAGES_HUGETLB = 1, /* those reserved by vm.nr_hugepages; opening fails if there are too few */
  PK_HUGE_PAGES_OFF = 2
} pk_huge_pages;

/*
 * Checks a loaded page before anyone reads it. Returns 0 if the page is valid. Otherwise the page is not
 * cached, and all who asked for it get PK_REJECTED with the string in reason (at most reason_size bytes with
 * its zero byte). Several threads may call it at once. It must not read through the cache, nor throw.
 */
typedef int (*pk_verifier)(void *arg, const char *path, uint64_t page, const void *bytes, size_t size, char *reason,
                           size_t reason_size);

typedef struct pk_cache_options {
  size_t struct_size;
  uint64_t memory;    /* the budget in bytes: pages, their records, tables of open files [64 MiB] */
  uint32_t page_size; /* a power of two from 4096 to 65536 [4096] */
  uint32_t backend;   /* pk_backend */
  uint32_t huge_pages;/* pk_huge_pages */
  uint32_t reserved;  /* 0 */
  pk_verifier verifier;
  void *verifier_arg; /* must live as long as the cache and its files */
} pk_cache_options;
#define PK_CACHE_OPTIONS_INIT { sizeof(pk_cache_options), 0, 0, 0, 0, 0, NULL, NULL }

typedef struct pk_cache_stats {
  size_t struct_size;
  uint64_t hits;           /* lookups that found their page: a read across three pages counts three times */
  uint64_t misses;         /* pages loaded because a reader found them absent */
  uint64_t coalesced;      /* lookups of a page that another caller was loading */
  uint64_t prefetched;     /* pages loaded ahead of any reader */
  uint64_t bypassed;       /* pages read past the cache, since all of its pages were pinned */
  uint64_t failures;       /* loads that failed */
  uint64_t evictions;      /* pages evicted to make room */
  uint64_t device_reads;   /* reads that went to the device */
  uint64_t device_bytes;   /* bytes that came from it */
  uint64_t resident_pages; /* cached pages */
  uint64_t capacity_pages; /* pages for which there is room */
  uint64_t page_size;      /* size of a page in bytes */
} pk_cache_stats;
#define PK_CACHE_STATS_INIT { sizeof(pk_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Opens a cache; options may be NULL. */
pk_status pk_cache_open(const pk_cache_options *options, pk_cache **cache);
/* Changes the budget of a cache in use, up to the one it was opened with. */
pk_status pk_cache_set_memory(pk_cache *cache, uint64_t bytes);
pk_status pk_cache_get_stats(pk_cache *cache, pk_cache_stats *stats);
/* Closes the cache. Its open files and pages stay valid, and keep its memory until they are closed. */
void pk_cache_close(pk_cache *cache);

/* Opens a file that will not change while it is open. A path that is opened several times is opened only
   once. */
pk_status pk_file_open(pk_cache *cache, const char *path, pk_file **file);
/* The length of the file when it was opened. 0 for NULL. */
uint64_t pk_file_size(const pk_file *file);
/* A number that is unique within the cache: it differs if the path's file was replaced between two opens. 0
   for NULL. */
uint64_t pk_file_id(const pk_file *file);
/* 1 if reads bypass the kernel's page cache, 0 if the file system has no direct I/O. */
int pk_file_is_direct(const pk_file *file);
/* Reads up to size bytes from offset on; fewer only at the end of the file. read may be NULL: then fewer
   bytes are PK_END. */
pk_status pk_file_read(pk_file *file, uint64_t offset, void *buffer, size_t size, size_t *read);

/* One of many reads. */
typedef struct pk_read {
  uint64_t offset;
  void *buffer;
  size_t size;
  size_t read;      /* out: bytes that were read; fewer than size only at the end of the file */
  pk_status status; /* out */
} pk_read;
/* Makes many reads at once: missing pages are read from the device together. Each read has its own status.
   The first status other than PK_OK is returned; it does not stop the other reads. */
pk_status pk_file_read_many(pk_file *file, pk_read *reads, size_t count);
/* Starts to load the pages of a range, without waiting. */
pk_status pk_file_prefetch(pk_file *file, uint64_t offset, uint64_t size);
/* Closes the file. Concurrent reads by other handles of the same file continue. */
void pk_file_close(pk_file *file);

/*
 * A file that the caller, and nobody else, writes while it is open: the pages of an engine's own store. All
 * functions on pk_file apply, and those that follow, which are PK_MISUSE for a file of pk_file_open(). A page
 * has one writer at a time. Reads that begin after a writing call has returned get the new content. Earlier
 * reads may get the old or the new content, or, if they read from the device during the write, a mixture. A
 * verifier detects that. An engine that allows reads of a page while it writes the page needs a verifier, or
 * must repeat such a read.
 */
/* Opens such a file. create: 0 creates it if it is missing, 1 never creates it, 2 fails if it exists. The
   file may grow to max_pages, which costs only address space (four bytes each). pk_file_size() is the length
   of max_pages pages. A page that the file does not have yet is PK_NOT_FOUND. The name of a new file is
   durable once the caller has synced its directory. */
pk_status pk_file_open_owned(pk_cache *cache, const char *path, uint32_t create, uint64_t max_pages, pk_file **file);
/* Writes whole pages from page first on, past the kernel's page cache (if pk_file_is_direct() is 1), and puts
   them into the cache: like pages that were read or, if prefetched is 1, like pages that are evicted first if
   nobody reads them. size is in bytes, a multiple of the page size. If the call fails, it is unknown which
   pages were written, and the cache has none of them. */
pk_status pk_file_write_pages(pk_file *file, uint64_t first, const void *bytes, size_t size, int prefetched);
/* For callers that write by their own calls, past the page cache: put written pages into the cache, or remove
   count pages from it. Call one of the two for each page after its write has returned. */
pk_status pk_file_install(pk_file *file, uint64_t first, const void *bytes, size_t size, int prefetched);
pk_status pk_file_discard(pk_file *file, uint64_t first, uint64_t count);
/* Makes written data durable: fdatasync(2). An error is final: data written since the last sync may be lost. */
pk_status pk_file_sync(pk_file *file);

/* A page in place, pinned: its bytes stay until it is released, even if everything else is closed or evicted. */
pk_status pk_page_get(pk_file *file, uint64_t number, pk_page **page);
const void *pk_page_data(const pk_page *page);
/* The size of the page in bytes; less at the end of the file. */
size_t pk_page_size(const pk_page *page);
void pk_page_release(pk_page *page);

/*
 * Called once, when an asynchronous read is over. If all pages are cached, the thread that starts the read
 * calls it at once; otherwise a thread of the cache does, which cannot serve other reads meanwhile. So it
 * must be short. It must not call functions that may wait (reads other than pk_file_read_async(),
 * pk_page_get(), collecting), since they may wait for this very thread. A read that it starts may be over
 * before the start returns: reading a whole file this way recurses. If status is not PK_OK,
 * pk_error_message() has the reason. It must not throw.
 */
typedef void (*pk_done)(void *arg, pk_status status, size_t read);
/* As pk_file_read(), without waiting. The buffer belongs to the library until done is called; the file may be
   closed before. */
pk_status pk_file_read_async(pk_file *file, uint64_t offset, void *buffer, size_t size, pk_done done, void *arg);

/*
 * Reads whose completions are collected, in the manner of io_uring: for event loops. The collecting thread
 * copies the data; a thread of the cache calls a verifier.
 */
typedef struct pk_queue pk_queue;
typedef struct pk_completion {
  uint64_t user_data; /* as given to pk_queue_read() */
  size_t read;
  pk_status status;
  int error_number;   /* errno, or 0 */
} pk_completion;
pk_status pk_queue_open(pk_queue **queue);
/* An eventfd that is readable while there is something to collect: for poll() and epoll. It belongs to the
   queue: do not read or close it. -1 for NULL. */
int pk_queue_fd(const pk_queue *queue);
/* Starts a read. The buffer belongs to the library until its completion is collected or the queue is closed. */
pk_status pk_queue_read(pk_queue *queue, pk_file *file, uint64_t offset, void *buffer, size_t size, uint64_t user_data);
/* Collects up to max completions. Waits for the first one for up to timeout_ms milliseconds (-1: without a
   limit, 0: not at all). Returns PK_TIMED_OUT if none came, and PK_END if no read is in flight. */
pk_status pk_queue_collect(pk_queue *queue, pk_completion *completions, size_t max, int timeout_ms, size_t *count);
/* Closes the queue. Reads in flight are abandoned, and their buffers are not written any more. */
void pk_queue_close(pk_queue *queue);

/* ---------------------------------------------------------------- bulk output */

/* A file that is written once, from start to end. It leaves no pages behind and does not stall other writers:
   for compaction and backup. */
typedef struct pk_bulk pk_bulk;

typedef enum pk_bulk_mode {
  PK_BULK_AUTO = 0,
  PK_BULK_DIRECT = 1,
  PK_BULK_PACED = 2,    /* through the page cache, written and released as it goes */
  PK_BULK_UNCACHED = 3, /* RWF_DONTCACHE, Linux 6.14 */
  PK_BULK_BUFFERED = 4  /* plain write(2), for comparison */
} pk_bulk_mode;

typedef struct pk_bulk_options {
  size_t struct_size;
  uint32_t mode;           /* pk_bulk_mode; falls back to another mode if it is not available */
  uint32_t reserved;       /* 0 */
  uint64_t expected_bytes; /* space is allocated at once, so that a full disk is detected at the start [0: none] */
  uint64_t budget;         /* unwritten bytes of all such writers of the disk together */
} pk_bulk_options;
#define PK_BULK_OPTIONS_INIT { sizeof(pk_bulk_options), 0, 0, 0, 0 }

typedef struct pk_bulk_report {
  size_t struct_size;
  uint64_t bytes;          /* the file's length */
  uint64_t resident_bytes; /* resident in the kernel's page cache at the end; UINT64_MAX if unknown */
  uint64_t took_ns;        /* from its creation until it was durable */
  uint64_t waited_ns;      /* of that, the time that the writer waited for the disk */
  uint32_t mode;           /* pk_bulk_mode, never PK_BULK_AUTO */
  uint32_t reserved;
} pk_bulk_report;
#define PK_BULK_REPORT_INIT { sizeof(pk_bulk_report), 0, 0, 0, 0, 0, 0 }

/* Creates the file, which must not exist; options may be NULL. */
pk_status pk_bulk_create(const char *path, const pk_bulk_options *options, pk_bulk **bulk);
pk_status pk_bulk_write(pk_bulk *bulk, const void *bytes, size_t size);
/* Writes the rest and makes the file durable. Closes the handle in any case; report may be NULL. */
pk_status pk_bulk_finish(pk_bulk *bulk, pk_bulk_report *report);
/* Closes the handle without finishing. The incomplete file stays, for the caller to remove. */
void pk_bulk_abandon(pk_bulk *bulk);

/*
 * The pace of output that an engine writes by calls of its own: pieces, one in flight at a time, and pauses while others wait for the
 * disk. A piece that took longer than such a piece usually does shows that somebody waits. It decides, and does no I/O. One for each disk; threads
 * share it. In a forked child it can be used too.
 */
typedef struct pk_pacer pk_pacer;

/* A part of a piece, or a whole one, that was written. */
typedef struct pk_written_part {
  size_t struct_size;
  uint64_t bytes;       /* more than 0 */
  uint64_t in_flight;   /* bytes that were in flight when it began, its own included [0: its own] */
  uint64_t took_min_ns; /* nanoseconds from its beginning until it was last seen in flight */
  uint64_t took_max_ns; /* until it was seen to be written [0: took_min_ns, which is exact then] */
  uint64_t busy_ns;     /* since the part before was written or a pause after it ended, if the disk had output to write ever since [0: not known] */
} pk_written_part;
#define PK_WRITTEN_PART_INIT { sizeof(pk_written_part), 0, 0, 0, 0, 0 }

pk_status pk_pacer_new(pk_pacer **pacer);
/* Bytes that may be in flight at once: 256 KiB at first, up to 16 MiB on a disk that is faster with more. 0 for NULL. */
uint64_t pk_pacer_piece(const pk_pacer *pacer);
/* Takes in that a part was written, and gives the nanoseconds for which to begin nothing: 100 ms at most. */
pk_status pk_pacer_written(pk_pacer *pacer, const pk_written_part *part, uint64_t *pause_ns);
void pk_pacer_free(pk_pacer *pacer);

/* ---------------------------------------------------------------- redo log */

/* A ring of preallocated files, read only after a crash. Any number of threads append; waiters share syncs. */
typedef struct pk_redo pk_redo;
typedef struct pk_redo_reader pk_redo_reader;

/* When appended records become durable, and what pk_redo_wait() waits for. As innodb_flush_log_at_trx_commit. */
typedef enum pk_flush_policy {
  PK_FLUSH_EACH_COMMIT = 0, /* pk_redo_wait() waits until they are durable (1) */
  PK_FLUSH_EVERY = 1,       /* it waits until they are written; they are synced every flush_interval_ms (2) */
  PK_FLUSH_OS = 2           /* it waits until they are written; the kernel decides when they are durable */
} pk_flush_policy;

/* How log files are written. */
typedef enum pk_log_mode {
  PK_LOG_AUTO = 0,
  PK_LOG_BUFFERED = 1,
  PK_LOG_UNCACHED = 2,
  PK_LOG_DIRECT = 3
} pk_log_mode;

typedef struct pk_redo_options {
  size_t struct_size;
  uint32_t files;             /* of the ring; only for creating it [4] */
  uint32_t flush_policy;      /* pk_flush_policy */
  uint64_t file_bytes;        /* of each file [256 MiB] */
  uint64_t buffer_bytes;      /* of the log buffer [4 MiB] */
  uint64_t flush_interval_ms; /* [1000] */
  uint32_t mode;              /* pk_log_mode */
  uint32_t read_only;         /* 1: nothing is written */
} pk_redo_options;
#define PK_REDO_OPTIONS_INIT { sizeof(pk_redo_options), 0, 0, 0, 0, 0, 0, 0 }

/* Creates a log in a directory that is empty or missing, and opens it; options may be NULL. */
pk_status pk_redo_create(const char *directory, const pk_redo_options *options, pk_redo **redo);
/* Opens a log and finds its end, also after a crash. Its sizes are those from its creation. */
pk_status pk_redo_open(const char *directory, const pk_redo_options *options, pk_redo **redo);
/* Appends a record, and returns the LSN just past it, for pk_redo_wait(). While the ring is full, it waits
   until another thread moves the checkpoint. */
pk_status pk_redo_append(pk_redo *redo, const void *bytes, size_t size, uint64_t *lsn);
/* The same, but returns PK_FULL if that would wait for a checkpoint. */
pk_status pk_redo_try_append(pk_redo *redo, const void *bytes, size_t size, uint64_t *lsn);
/* Returns when everything before lsn is durable, or written, according to the flush policy. */
pk_status pk_redo_wait(pk_redo *redo, uint64_t lsn);
/* Returns when everything before lsn is durable, whatever the policy. */
pk_status pk_redo_sync(pk_redo *redo, uint64_t lsn);
/* Releases all records before lsn: they may be overwritten. Does nothing if the checkpoint is past lsn already. */
pk_status pk_redo_checkpoint(pk_redo *redo, uint64_t lsn);
/* The start of the first unreleased record; the start of the next record; the end of the durable part. 0 for
   NULL. */
uint64_t pk_redo_checkpoint_lsn(const pk_redo *redo);
uint64_t pk_redo_end_lsn(const pk_redo *redo);
uint64_t pk_redo_durable_lsn(const pk_redo *redo);
/* The longest record that can be appended, in bytes. 0 for NULL. */
uint64_t pk_redo_longest_record(const pk_redo *redo);
/* Makes everything durable and closes the log. Closes the handle in any case. */
pk_status pk_redo_close(pk_redo *redo);

/* Reads the records from lsn on: a value from pk_redo_checkpoint_lsn(), an append or a reader. */
pk_status pk_redo_read(pk_redo *redo, uint64_t lsn, pk_redo_reader **reader);
/* The next record. Its bytes live until the next call with this reader. next is the LSN just past it, and may
   be NULL. PK_END after the last. */
pk_status pk_redo_next(pk_redo_reader *reader, const void **bytes, size_t *size, uint64_t *next);
void pk_redo_reader_close(pk_redo_reader *reader);
/* Reads the records of a log that is not open, from its checkpoint on, however much of it is lost: after the last
   readable one, pk_redo_next() returns PK_END, or the reason why there are no more. Writes nothing. */
pk_status pk_redo_salvage(const char *directory, pk_redo_reader **reader);

/* ---------------------------------------------------------------- binlog */

/* A log in an unlimited sequence of segments, with followers: replicas, archivers. Its pages are released
   behind the last near follower. */
typedef struct pk_binlog pk_binlog;
typedef struct pk_follower pk_follower;

typedef struct pk_position {
  uint64_t segment;
  uint64_t offset;
} pk_position;

typedef struct pk_binlog_options {
  size_t struct_size;
  uint64_t max_segment_bytes; /* [1 GiB] */
  uint64_t sync_every;        /* groups per sync: 1 syncs each group, PK_SYNC_NEVER only on request [1] */
  uint32_t mode;              /* pk_log_mode */
  uint32_t read_only;         /* 1: nothing is written */
} pk_binlog_options;
#define PK_BINLOG_OPTIONS_INIT { sizeof(pk_binlog_options), 0, 0, 0, 0 }
#define PK_SYNC_NEVER UINT64_MAX

typedef struct pk_record {
  const void *bytes;
  size_t size;
} pk_record;

/* A record for a follower. Its bytes live until the next call with this follower. */
typedef struct pk_event {
  pk_record record;
  pk_position position; /* its position */
  pk_position next;     /* the position to follow from after this record */
  int ends_group;       /* 1: it is the last one of its group */
} pk_event;

/* Opens the log in a directory, or creates one if the directory is empty or missing; options may be NULL. */
pk_status pk_binlog_open(const char *directory, const pk_binlog_options *options, pk_binlog **binlog);
/* Appends records that belong together; position, which may be NULL, is past them. If sync_every is 1, they
   are durable on return. */
pk_status pk_binlog_append(pk_binlog *binlog, const pk_record *records, size_t count, pk_position *position);
pk_status pk_binlog_sync(pk_binlog *binlog);
/* Seals the current segment and begins a new one. */
pk_status pk_binlog_rotate(pk_binlog *binlog);
/* Removes the segments before the position's own. Returns PK_LOCKED if a follower has yet to read some of
   them, unless force is 1: then that follower gets PK_TOO_OLD. */
pk_status pk_binlog_purge(pk_binlog *binlog, pk_position position, int force);
/* Removes all records after a position from an append or a follower, durably. Returns PK_LOCKED if a follower is
   in the position's segment or a later one, unless force is 1: then that follower gets PK_TOO_OLD. */
pk_status pk_binlog_truncate(pk_binlog *binlog, pk_position position, int force);
/* The start of the oldest record; the position past the last record; the end of the durable part. */
pk_status pk_binlog_first(pk_binlog *binlog, pk_position *position);
pk_status pk_binlog_end(pk_binlog *binlog, pk_position *position);
pk_status pk_binlog_durable_end(pk_binlog *binlog, pk_position *position);
/* The position of the first record for which is_before returns 0, or the end: finds a record by a number that is in
   each record and never decreases. Reads the first record of some segments, then one segment up to the result. */
typedef int (*pk_is_before)(void *arg, const void *bytes, size_t size);
pk_status pk_binlog_partition_point(pk_binlog *binlog, pk_is_before is_before, void *arg, pk_position *position);
/* The start of the first segment that was written to since a time, or the end; that of the oldest segment from which
   on the log has at most this many bytes, or of the last one. To follow from, or to purge to. */
pk_status pk_binlog_since(pk_binlog *binlog, uint64_t unix_seconds, pk_position *position);
pk_status pk_binlog_last_bytes(pk_binlog *binlog, uint64_t bytes, pk_position *position);
/* Makes everything durable and closes the log. Closes the handle in any case. Followers read the rest, and
   end. */
pk_status pk_binlog_close(pk_binlog *binlog);

/* Follows the log from a position on. durable_only 1: records are returned only once they are durable. */
pk_status pk_binlog_follow(pk_binlog *binlog, pk_position from, int durable_only, pk_follower **follower);
/* The next record; waits for up to timeout_ms (-1: without a limit). Returns PK_TIMED_OUT if none came, and
   PK_END if the log is closed and everything was read. */
pk_status pk_follower_next(pk_follower *follower, int timeout_ms, pk_event *event);
void pk_follower_close(pk_follower *follower);

/* ---------------------------------------------------------------- page store */

/* A file of pages with atomic commits of many pages, which opens at once after a crash. One writer at a time;
   any number of readers, each with a snapshot. */
typedef struct pk_store pk_store;
typedef struct pk_write_txn pk_write_txn;
typedef struct pk_read_txn pk_read_txn;
typedef struct pk_store_page pk_store_page;

#define PK_NO_PAGE UINT64_MAX

/* When a commit returns. */
typedef enum pk_durability {
  PK_DURABLE = 0,       /* when it is durable; concurrent commits share a sync */
  PK_DURABLE_GROUP = 1, /* the same, but it leaves the sync to another commit that follows soon */
  PK_NOT_DURABLE = 2    /* at once: durable with the next durable commit, or after a second */
} pk_durability;

typedef struct pk_store_options {
  size_t struct_size;
  uint64_t memory;        /* the budget in bytes [256 MiB] */
  uint64_t journal_bytes; /* the journal's limit, which bounds the time to open after a crash [256 MiB] */
  uint32_t page_size;     /* for creating a store: a power of two from 4096 to 65536 [4096] */
  uint32_t create;        /* 0: if it is missing, 1: never, 2: it must not exist */
  uint32_t read_only;     /* 1: nothing is written */
  uint32_t reserved;      /* 0 */
  uint64_t snapshot_bytes;/* the limit of old versions on disk, for snapshots that are kept for long [4 GiB] */
} pk_store_options;
#define PK_STORE_OPTIONS_INIT { sizeof(pk_store_options), 0, 0, 0, 0, 0, 0, 0 }

typedef struct pk_store_stat {
  size_t struct_size;
  uint64_t page_size;        /* bytes of a page */
  uint64_t payload_size;     /* of those, the caller's own */
  uint64_t pages;            /* pages that are or were in use */
  uint64_t free_pages;       /* of those, the free ones */
  uint64_t seq;              /* the last commit */
  uint64_t checkpoint_seq;   /* the last commit that is certainly in the data file */
  uint64_t journal_bytes;    /* bytes that a recovery would read */
  uint64_t opening_ns;       /* duration of the opening */
  uint64_t recovered_commits;/* commits that the opening found in the journal */
} pk_store_stat;
#define PK_STORE_STAT_INIT { sizeof(pk_store_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Opens the store in a directory; options may be NULL. */
pk_status pk_store_open(const char *directory, const pk_store_options *options, pk_store **store);
pk_status pk_store_get_stat(pk_store *store, pk_store_stat *stat);
/* Returns when all earlier commits are durable in the data file. */
pk_status pk_store_sync(pk_store *store);
/* Checks every page, the free list and the superblocks, concurrently with other work. faults, the number of
   faults, may be NULL. If the call is PK_CORRUPT, pk_error_message() describes the first one. */
pk_status pk_store_verify(pk_store *store, uint64_t *faults);
/* Copies the store as of one commit to a new directory, concurrently with other work; seq, which may be NULL,
   is the number of that commit. */
pk_status pk_store_backup(pk_store *store, const char *to, uint64_t *seq);
/* Creates a store from a backup in a new directory, and checks every page of it; seq, which may be NULL, is
   the commit that it has. Returns PK_CORRUPT if a page is damaged: then to does not exist. */
pk_status pk_store_restore(const char *backup, const char *to, uint64_t *seq);
/* Saves what can be saved of a damaged store, which is only read and must not be open, to a new directory. PK_OK
   if nothing is lost. PK_CORRUPT if something is: then the new store exists all the same, faults, which may be
   NULL, is their number, and pk_error_message() describes the first one. */
pk_status pk_store_repair(const char *store, const char *to, uint64_t *faults);
/* Closes the store; all commits are durable then. Closes the handle in any case. Open transactions keep the
   store open, and its directory locked, until they end. */
pk_status pk_store_close(pk_store *store);

/* Begins a write transaction; waits until the previous one is over. PK_MISUSE if this thread began that one: it
   would wait for itself. That is so even if another thread is to end it: a thread that passed its transaction on
   begins the next one with pk_store_begin_write_timeout(store, INT_MAX, &txn), which waits for up to 24 days. */
pk_status pk_store_begin_write(pk_store *store, pk_write_txn **txn);
/* The same, but waits for up to timeout_ms milliseconds (0: not at all) and then returns PK_TIMED_OUT, whichever
   thread began the previous transaction. With -1 it is pk_store_begin_write(): no limit, and PK_MISUSE if this
   thread began the previous transaction. */
pk_status pk_store_begin_write_timeout(pk_store *store, int timeout_ms, pk_write_txn **txn);
/* Changes fail with PK_TOO_LARGE once those before them no longer fit into the journal: abort the transaction. */
pk_status pk_write_allocate(pk_write_txn *txn, uint64_t *page);
/* Allocates contiguous pages and returns the first of them. Until they are written, they read as never
   written. */
pk_status pk_write_allocate_run(pk_write_txn *txn, uint64_t pages, uint64_t *first);
pk_status pk_write_free(pk_write_txn *txn, uint64_t page);
/* Copies up to size bytes of a page from offset on; read, the number of bytes, may be NULL. */
pk_status pk_write_copy(pk_write_txn *txn, uint64_t page, size_t offset, void *buffer, size_t size, size_t *read);
/* Changes a part of a page that was allocated or committed before. */
pk_status pk_write_change(pk_write_txn *txn, uint64_t page, size_t offset, const void *bytes, size_t size);
/* Replaces a whole page without reading the old content: size is the payload's. */
pk_status pk_write_page(pk_write_txn *txn, uint64_t page, const void *bytes, size_t size);
/* The page from which all others are found; PK_NO_PAGE: none. */
pk_status pk_write_get_root(pk_write_txn *txn, uint64_t *page);
pk_status pk_write_set_root(pk_write_txn *txn, uint64_t page);
/* Commits everything or nothing; seq, the number of the commit, may be NULL. Closes the handle in any case. */
pk_status pk_write_commit(pk_write_txn *txn, pk_durability durability, uint64_t *seq);
/* Ends the transaction without any change. */
void pk_write_abort(pk_write_txn *txn);

/* A snapshot: all pages as of one commit. Does not wait. */
pk_status pk_store_begin_read(pk_store *store, pk_read_txn **txn);
pk_status pk_read_get_root(pk_read_txn *txn, uint64_t *page);
/* The number of the visible commit; 0 for NULL. */
uint64_t pk_read_seq(const pk_read_txn *txn);
pk_status pk_read_copy(pk_read_txn *txn, uint64_t page, size_t offset, void *buffer, size_t size, size_t *read);
/* A page in place: later commits do not change it. It occupies a page of memory until it is released. */
pk_status pk_read_page(pk_read_txn *txn, uint64_t number, pk_store_page **page);
const void *pk_store_page_data(const pk_store_page *page);
size_t pk_store_page_size(const pk_store_page *page);
void pk_store_page_release(pk_store_page *page);
void pk_read_end(pk_read_txn *txn);

/* ---------------------------------------------------------------- ordered map */

/* An ordered map of byte strings in the pages of a store: a B+tree. Its root page identifies it, and never
   changes; a store has any number of maps. Keys are ordered by their bytes and have up to a third of a page: 1336
   bytes of 4 KiB; values have less than 4 GiB (PK_TOO_LARGE beyond, also for a change that no longer fits into
   the journal with those before it). If a change fails in any other way, the transaction contains a part of it:
   abort it. PK_MISUSE if the root is no page of a map; PK_CORRUPT if another page of the map is not. */
typedef struct pk_cursor pk_cursor;

pk_status pk_map_create(pk_write_txn *txn, uint64_t *root);
/* Frees all pages of a map. */
pk_status pk_map_drop(pk_write_txn *txn, uint64_t root);
pk_status pk_map_put(pk_write_txn *txn, uint64_t root, const void *key, size_t key_size, const void *value, size_t value_size);
/* PK_NOT_FOUND if there is no such key. */
pk_status pk_map_delete(pk_write_txn *txn, uint64_t root, const void *key, size_t key_size);
/* Copies up to size bytes of a value; value_size, its full length, may be NULL. PK_NOT_FOUND if there is no
   such key. */
pk_status pk_map_get(pk_read_txn *txn, uint64_t root, const void *key, size_t key_size, void *buffer, size_t size, size_t *value_size);
/* The same, including the changes of the transaction so far. */
pk_status pk_write_map_get(pk_write_txn *txn, uint64_t root, const void *key, size_t key_size, void *buffer, size_t size, size_t *value_size);
/* Reads the whole map; entries, their number, may be NULL. PK_CORRUPT with the first invalid page. */
pk_status pk_map_check(pk_read_txn *txn, uint64_t root, uint64_t *entries);

/* Maps by name: the store's root page is then a map of names, so set no other one. PK_NOT_FOUND if there is none
   of the name; pk_write_map_open() creates it. pk_write_map_drop() frees the map and its name. */
pk_status pk_map_open(pk_read_txn *txn, const void *name, size_t name_size, uint64_t *root);
pk_status pk_write_map_open(pk_write_txn *txn, const void *name, size_t name_size, uint64_t *root);
pk_status pk_write_map_drop(pk_write_txn *txn, const void *name, size_t name_size);

/* The entries from a key on (inclusive), forwards or backwards; size 0: from the first or last entry. The
   cursor keeps its snapshot, which may be ended before it. */
pk_status pk_cursor_open(pk_read_txn *txn, uint64_t root, const void *from, size_t from_size, int backwards, pk_cursor **cursor);
/* The same in a transaction: it sees the changes so far, also those made since it returned an entry. PK_MISUSE
   from pk_cursor_next() once the transaction has ended. */
pk_status pk_write_cursor_open(pk_write_txn *txn, uint64_t root, const void *from, size_t from_size, int backwards, pk_cursor **cursor);
/* Continues from a key on (inclusive), in the same direction; size 0: from the first or last entry. */
pk_status pk_cursor_seek(pk_cursor *cursor, const void *key, size_t key_size);
/* Ends the entries at a key, included or not: the upper bound forwards, the lower one backwards. */
pk_status pk_cursor_set_end(pk_cursor *cursor, const void *key, size_t key_size, int included);
/* The next entry, in place until the next call with the cursor; PK_END if there is none. The cursor reads
   ahead up to 32 entries, of 32 KiB in total not counting the last; none in a transaction. */
pk_status pk_cursor_next(pk_cursor *cursor, const void **key, size_t *key_size, const void **value, size_t *value_size);
void pk_cursor_close(pk_cursor *cursor);

/* ---------------------------------------------------------------- the kernel's page cache */

typedef struct pk_residency {
  size_t struct_size;
  uint64_t resident_bytes;  /* in the page cache */
  uint64_t dirty_bytes;     /* changed and not yet written; UINT64_MAX if unknown */
  uint64_t writeback_bytes; /* being written; UINT64_MAX if unknown */
} pk_residency;
#define PK_RESIDENCY_INIT { sizeof(pk_residency), 0, 0, 0 }
#define PK_TO_END UINT64_MAX

/* The residency of a range of a file in the kernel's page cache; size PK_TO_END: up to the end. PK_IO with
   EPERM if this user has no permission to query it. */
pk_status pk_resident(const char *path, uint64_t offset, uint64_t size, pk_residency *residency);
/* Writes dirty pages back, and drops all pages from the page cache; the data stays. Waits for up to
   timeout_ms (-1: a minute). released, the bytes that were dropped, and kept, those that stayed (mapped,
   busy), may each be NULL. */
pk_status pk_release(const char *path, uint64_t offset, uint64_t size, int timeout_ms, uint64_t *released, uint64_t *kept);
/* Reads missing pages into the page cache; loaded, in bytes, may be NULL. */
pk_status pk_warm(const char *path, uint64_t offset, uint64_t size, uint64_t *loaded);

/* ---------------------------------------------------------------- former names */

/* The names of version 0.1.0, for programs that were written for it. Both libraries have them. */
#define pk_tree_create pk_map_create
#define pk_tree_delete pk_map_drop
#define pk_tree_put pk_map_put
#define pk_tree_remove pk_map_delete
#define pk_tree_get pk_map_get
#define pk_txn_tree_get pk_write_map_get
#define pk_txn_allocate pk_write_allocate
#define pk_txn_allocate_run pk_write_allocate_run
#define pk_txn_free pk_write_free
#define pk_txn_read pk_write_copy
#define pk_txn_write pk_write_change
#define pk_txn_put pk_write_page
#define pk_txn_get_root pk_write_get_root
#define pk_txn_set_root pk_write_set_root
#define pk_txn_commit pk_write_commit
#define pk_txn_abort pk_write_abort
#define pk_snapshot_root pk_read_get_root
#define pk_snapshot_seq pk_read_seq
#define pk_snapshot_read pk_read_copy
#define pk_snapshot_page pk_read_page
#define pk_snapshot_end pk_read_end

#ifdef __cplusplus
}
#endif

#endif
