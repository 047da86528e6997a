/*
 * pagekeeper.h: a page cache in user space, logs that release their pages, bulk
 * output, a page store that opens at once after a crash, and what the kernel's page
 * cache holds of a file. The C interface of libpagekeeper.
 *
 * Rules that hold for every function:
 *
 * - It returns PK_OK, or what went wrong; then pk_error_message() and pk_error_number() say more, on the
 *   same thread, until the next call on it that fails. What is given back goes through a pointer, which is not
 *   written to where the call fails.
 * - Offsets and lengths are bytes. Paths are strings of bytes that end in a zero byte, as the system's calls take
 *   them. NULL for a handle, a path or a buffer that is needed is PK_MISUSE.
 * - A handle belongs to who opened it, and is given up by its own pk_..._close() and the like, once. These
 *   take NULL, and do nothing then. A handle that was given up is not used again.
 * - Handles can be used by several threads at once, but for those that have a position or changes of their
 *   own: pk_bulk, pk_redo_reader, pk_follower, pk_write_txn, pk_cursor. Two threads in one of these at the same time: the
 *   second gets PK_MISUSE. All can be handed from one thread to another. To close any handle while another thread is
 *   in a call with it is an error like the use of one that was closed: give pk_follower_next() a timeout.
 * - Nothing is thrown and nothing unwinds through these calls, no signal is used, nothing is written to stdout or
 *   stderr but by a defect of the library, which is PK_INTERNAL. Nothing that one handle is given changes another.
 *   Threads of a handle leave it when it is closed; one that all bulk output shares stays, and so does the library: a
 *   dlclose() leaves it loaded.
 * - Fork: a handle belongs to the process that opened it. In a forked child each call that would read, write, wait or count by it is
 *   PK_FORKED, at once and without effect, and to close it does nothing. The child opens its own. A child that lives on and executes no
 *   other program keeps its parent's logs and stores locked, also after the parent's end.
 * - Structures begin with their size, so that later versions can add to their end: begin with the macro
 *   PK_..._INIT, or zero them and set struct_size. 0 in an option is its default.
 *
 * Functions and structures are only added within one soname (PK_VERSION_MAJOR); symbols have versions.
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

/* The version of the library that runs, as "0.1.0": it lives as long as the library is loaded. */
const char *pk_version(void);

/* ---------------------------------------------------------------- errors */

typedef enum pk_status {
  PK_OK = 0,
  PK_MISUSE = 1,      /* an argument is NULL, out of its range, or a handle is in use by another thread */
  PK_IO = 2,          /* a call to the system failed: pk_error_number() has errno */
  PK_CORRUPT = 3,     /* what is on the disk is not what was written */
  PK_NOT_FOUND = 4,   /* no such file, log, store, page or position */
  PK_EXISTS = 5,      /* something is there already */
  PK_LOCKED = 6,      /* in use by another process or handle */
  PK_CHANGED = 7,     /* the file changed since it was opened: open it again */
  PK_TOO_LARGE = 8,   /* the record, group or transaction; nothing of it was written */
  PK_FULL = 9,        /* the ring is full until the checkpoint is moved, or the disk is */
  PK_POISONED = 10,   /* a write or sync failed before: nothing is accepted until it is opened again */
  PK_READ_ONLY = 11,  /* opened to read only */
  PK_TOO_OLD = 12,    /* the snapshot, position or base is not kept any more */
  PK_NO_MEMORY = 13,  /* the system gave no memory */
  PK_UNSUPPORTED = 14,/* not here: the kernel, the file system, or a structure of a later version of this header */
  PK_REJECTED = 15,   /* the verifier said no to a page */
  PK_END = 16,        /* no more: the end of the log, or it was closed */
  PK_TIMED_OUT = 17,  /* nothing came in that time */
  PK_INTERNAL = 18,   /* a defect of the library, or a panic in it */
  PK_FORKED = 19      /* opened by the process that this one was forked from, and that one's alone */
} pk_status;

/* What went wrong in the last call that failed on this thread, in plain words and UTF-8; "" if none did. It lives until the next one. */
const char *pk_error_message(void);
/* errno of the last call that failed on this thread, or 0 where the system did not say no. */
int pk_error_number(void);
/* The name of a status, as "PK_IO"; "unknown" for a number that is none. */
const char *pk_status_name(pk_status status);
/* A number of the calling process, which no process that it was forked from has: for what is built on these handles, to tell a forked
   child. No system call. */
uint64_t pk_process_number(void);

/* ---------------------------------------------------------------- page cache */

/*
 * A page cache for files that do not change while they are open: SST files, segments, blobs. They are read by direct I/O, so that the
 * kernel's page cache holds nothing of them; what is cached, and how much, is up to the budget.
 */
typedef struct pk_cache pk_cache;
typedef struct pk_file pk_file;
typedef struct pk_page pk_page;

/* How pages that are missed are read. */
typedef enum pk_backend {
  PK_BACKEND_AUTO = 0,    /* direct, by io_uring, or by threads where that can't be had */
  PK_BACKEND_URING = 1,
  PK_BACKEND_THREADS = 2,
  PK_BACKEND_BUFFERED = 3 /* through the kernel's page cache: everything may be cached twice */
} pk_backend;

/* Where the memory of pages comes from. */
typedef enum pk_huge_pages {
  PK_HUGE_PAGES_TRANSPARENT = 0,
  PK_HUGE_PAGES_HUGETLB = 1, /* those set aside by vm.nr_hugepages; opening fails where there are too few */
  PK_HUGE_PAGES_OFF = 2
} pk_huge_pages;

/*
 * Checks a page that was loaded, before anyone reads it: 0 if it is right. Else it is not cached, and all who asked for it get
 * PK_REJECTED with what was written to reason (a string, of reason_size bytes at most with its zero). Called by several
 * threads at once. It must not read through the cache, nor throw.
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
  void *verifier_arg; /* lives as long as the cache and its files */
} pk_cache_options;
#define PK_CACHE_OPTIONS_INIT { sizeof(pk_cache_options), 0, 0, 0, 0, 0, NULL, NULL }

typedef struct pk_cache_stats {
  size_t struct_size;
  uint64_t hits;           /* lookups that found their page: a read across three pages counts three */
  uint64_t misses;         /* pages loaded because a reader found them absent */
  uint64_t coalesced;      /* lookups of a page that another caller was loading */
  uint64_t prefetched;     /* pages loaded ahead of any reader */
  uint64_t bypassed;       /* pages read past the cache, since all of it was held */
  uint64_t failures;       /* loads that failed */
  uint64_t evictions;      /* pages evicted to make room */
  uint64_t device_reads;   /* reads that went to the device */
  uint64_t device_bytes;   /* bytes that came from it */
  uint64_t resident_pages; /* pages that are cached */
  uint64_t capacity_pages; /* pages that there is room for */
  uint64_t page_size;      /* bytes of a page */
} pk_cache_stats;
#define PK_CACHE_STATS_INIT { sizeof(pk_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Opens a cache; options may be NULL. */
pk_status pk_cache_open(const pk_cache_options *options, pk_cache **cache);
/* Gives the cache another budget while it is in use: up to what it was opened with. */
pk_status pk_cache_set_memory(pk_cache *cache, uint64_t bytes);
pk_status pk_cache_get_stats(pk_cache *cache, pk_cache_stats *stats);
/* Closes it. Files and pages of it stay as they are, and keep its memory until they are closed. */
void pk_cache_close(pk_cache *cache);

/* Opens a file that will not change while it is open. One path that several open is opened once. */
pk_status pk_file_open(pk_cache *cache, const char *path, pk_file **file);
/* Its length when it was opened. 0 for NULL. */
uint64_t pk_file_size(const pk_file *file);
/* A number that no other open of this cache has: two opens of one path that was replaced in between differ. 0 for NULL. */
uint64_t pk_file_id(const pk_file *file);
/* 1 where reads go past the kernel's page cache, 0 where the file system has no direct I/O. */
int pk_file_is_direct(const pk_file *file);
/* Reads up to size bytes from offset on; fewer only at the end of the file. read may be NULL: then fewer are PK_END. */
pk_status pk_file_read(pk_file *file, uint64_t offset, void *buffer, size_t size, size_t *read);

/* One of many reads. */
typedef struct pk_read {
  uint64_t offset;
  void *buffer;
  size_t size;
  size_t read;      /* out: bytes that were read, fewer than size only at the end of the file */
  pk_status status; /* out */
} pk_read;
/* Makes many reads at once: what is absent goes to the device together. Each has a status of its own; the first that is not
   PK_OK is returned, and does not keep the others from being read. */
pk_status pk_file_read_many(pk_file *file, pk_read *reads, size_t count);
/* Begins to load the pages of a range, and waits for none. */
pk_status pk_file_prefetch(pk_file *file, uint64_t offset, uint64_t size);
/* Closes it. What is read at this time by other handles of the same file goes on. */
void pk_file_close(pk_file *file);

/*
 * A file that the caller writes while it is open, and nobody else does: the pages of an engine's own store. All functions on pk_file hold, and those
 * that follow, which are PK_MISUSE for a file of pk_file_open(). One writer of a page at a time. Reads that begin after a call that writes has returned give
 * the new content; those that began before may give the old or the new, or, where they went to the device while the page was written, some of
 * both: a verifier sees that, and an engine that lets pages be read while it writes them needs one, or reads such a page again.
 */
/* Opens such a file: create 0: makes it if it is missing, 1: never, 2: it must not be there. It may come to max_pages, which costs address space alone (four
   bytes each); pk_file_size() is the length of so many. A page that the file does not have yet is PK_NOT_FOUND. The name of a new file is durable
   when its directory was synced, by the caller. */
pk_status pk_file_open_owned(pk_cache *cache, const char *path, uint32_t create, uint64_t max_pages, pk_file **file);
/* Writes whole pages from page first on, past the kernel's page cache (where pk_file_is_direct() is 1), and puts them into the cache: as pages that were read,
   or with prefetched 1 as such that go first if nobody reads them. size, in bytes, is a number of whole pages. Where it fails, which of them were written is not
   known, and the cache has none of them. */
pk_status pk_file_write_pages(pk_file *file, uint64_t first, const void *bytes, size_t size, int prefetched);
/* For who writes by calls of its own, past the page cache: puts pages that were written into the cache, or takes count of them out of it. Call one of both
   for each page when its write has returned. */
pk_status pk_file_install(pk_file *file, uint64_t first, const void *bytes, size_t size, int prefetched);
pk_status pk_file_discard(pk_file *file, uint64_t first, uint64_t count);
/* Makes what was written durable: fdatasync(2). An error is final: what was written since the last sync may be lost. */
pk_status pk_file_sync(pk_file *file);

/* A page in place, pinned: its bytes stay until it is released, whatever is closed or evicted meanwhile. */
pk_status pk_page_get(pk_file *file, uint64_t number, pk_page **page);
const void *pk_page_data(const pk_page *page);
/* Bytes of it: a page, or less at the end of the file. */
size_t pk_page_size(const pk_page *page);
void pk_page_release(pk_page *page);

/*
 * Called once, when a read that was begun is over: at once, by the thread that began it, where all pages are there; else by a thread of
 * the cache, which is kept from other reads meanwhile: so be short, and call nothing that may wait (no read but pk_file_read_async(), no
 * pk_page_get(), no collecting), since that may wait for the very thread. A read that is begun in it may be over before it returns: to
 * go on through a file from there is a recursion. pk_error_message() says why status is not PK_OK. It must not throw.
 */
typedef void (*pk_done)(void *arg, pk_status status, size_t read);
/* As pk_file_read(), without waiting. The buffer is the library's until done is called; the file may be closed before. */
pk_status pk_file_read_async(pk_file *file, uint64_t offset, void *buffer, size_t size, pk_done done, void *arg);

/*
 * Reads whose ends are collected by whoever wants to, in the manner of io_uring: for event loops. What came is copied by the thread that
 * collects; a verifier is called by a thread of the cache.
 */
typedef struct pk_queue pk_queue;
typedef struct pk_completion {
  uint64_t user_data; /* as it was given */
  size_t read;
  pk_status status;
  int error_number;   /* errno, or 0 */
} pk_completion;
pk_status pk_queue_open(pk_queue **queue);
/* An eventfd that can be read while there is something to collect: for poll() and epoll. It is the queue's: do not read or close it. -1 for NULL. */
int pk_queue_fd(const pk_queue *queue);
/* Begins a read. The buffer is the library's until its completion was collected, or the queue is closed. */
pk_status pk_queue_read(pk_queue *queue, pk_file *file, uint64_t offset, void *buffer, size_t size, uint64_t user_data);
/* Collects up to max completions; waits for the first for up to timeout_ms milliseconds (-1: as long as it takes, 0: not at all), and is
   PK_TIMED_OUT where none came, PK_END where no read is under way. */
pk_status pk_queue_collect(pk_queue *queue, pk_completion *completions, size_t max, int timeout_ms, size_t *count);
/* Closes it: reads that are under way are given up, and their buffers are not written to any more. */
void pk_queue_close(pk_queue *queue);

/* ---------------------------------------------------------------- bulk output */

/* A file that is written once, from its start on, and that leaves no pages behind and keeps no other writer waiting: compaction, backup. */
typedef struct pk_bulk pk_bulk;

typedef enum pk_bulk_mode {
  PK_BULK_AUTO = 0,
  PK_BULK_DIRECT = 1,
  PK_BULK_PACED = 2,    /* through the page cache, written and released as it goes */
  PK_BULK_UNCACHED = 3, /* RWF_DONTCACHE, Linux 6.14 */
  PK_BULK_BUFFERED = 4  /* as write(2) alone does, for comparison */
} pk_bulk_mode;

typedef struct pk_bulk_options {
  size_t struct_size;
  uint32_t mode;           /* pk_bulk_mode; what is not there gives way to the next best */
  uint32_t reserved;       /* 0 */
  uint64_t expected_bytes; /* room is allocated at once, so that a full disk is found at the start [0: none] */
  uint64_t budget;         /* bytes that may be unwritten, of all such writers of the disk together */
} pk_bulk_options;
#define PK_BULK_OPTIONS_INIT { sizeof(pk_bulk_options), 0, 0, 0, 0 }

typedef struct pk_bulk_report {
  size_t struct_size;
  uint64_t bytes;          /* the file's length */
  uint64_t resident_bytes; /* of it in the kernel's page cache at the end; UINT64_MAX where that can't be known */
  uint64_t took_ns;        /* from its creation until it was durable */
  uint64_t waited_ns;      /* the part of it that the writer waited for the disk */
  uint32_t mode;           /* pk_bulk_mode, never PK_BULK_AUTO */
  uint32_t reserved;
} pk_bulk_report;
#define PK_BULK_REPORT_INIT { sizeof(pk_bulk_report), 0, 0, 0, 0, 0, 0 }

/* Creates the file, which must not be there; options may be NULL. */
pk_status pk_bulk_create(const char *path, const pk_bulk_options *options, pk_bulk **bulk);
pk_status pk_bulk_write(pk_bulk *bulk, const void *bytes, size_t size);
/* Writes what is left and makes it durable. The handle is given up, whatever is returned; report may be NULL. */
pk_status pk_bulk_finish(pk_bulk *bulk, pk_bulk_report *report);
/* Gives it up: the file stays, incomplete, for the caller to remove. */
void pk_bulk_abandon(pk_bulk *bulk);

/* ---------------------------------------------------------------- redo log */

/* A ring of preallocated files, read after a crash only. Any number of threads append; who waits shares syncs. */
typedef struct pk_redo pk_redo;
typedef struct pk_redo_reader pk_redo_reader;

/* When what was appended is durable: what pk_redo_wait() waits for. As innodb_flush_log_at_trx_commit. */
typedef enum pk_flush_policy {
  PK_FLUSH_EACH_COMMIT = 0, /* when it is durable (1) */
  PK_FLUSH_EVERY = 1,       /* when it is written; it is synced each flush_interval_ms (2) */
  PK_FLUSH_OS = 2           /* when it is written; the kernel decides when it is durable */
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
  uint32_t files;             /* of the ring, where it is created [4] */
  uint32_t flush_policy;      /* pk_flush_policy */
  uint64_t file_bytes;        /* of each of them [256 MiB] */
  uint64_t buffer_bytes;      /* of the log buffer [16 MiB] */
  uint64_t flush_interval_ms; /* [1000] */
  uint32_t mode;              /* pk_log_mode */
  uint32_t read_only;         /* 1: not one byte is written */
} pk_redo_options;
#define PK_REDO_OPTIONS_INIT { sizeof(pk_redo_options), 0, 0, 0, 0, 0, 0, 0 }

/* Makes a log in a directory that is empty or not there, and opens it; options may be NULL. */
pk_status pk_redo_create(const char *directory, const pk_redo_options *options, pk_redo **redo);
/* Opens a log: finds its end, after a crash too. Sizes are those it was made with. */
pk_status pk_redo_open(const char *directory, const pk_redo_options *options, pk_redo **redo);
/* Appends a record, and gives the LSN just past it: what pk_redo_wait() takes. Waits while the ring is full, until another thread moves the checkpoint. */
pk_status pk_redo_append(pk_redo *redo, const void *bytes, size_t size, uint64_t *lsn);
/* The same, but PK_FULL where that would wait for a checkpoint. */
pk_status pk_redo_try_append(pk_redo *redo, const void *bytes, size_t size, uint64_t *lsn);
/* Returns when all before lsn is durable, or written, as the flush policy says. */
pk_status pk_redo_wait(pk_redo *redo, uint64_t lsn);
/* Returns when all before lsn is durable, whatever the policy. */
pk_status pk_redo_sync(pk_redo *redo, uint64_t lsn);
/* Releases all records before lsn: they may be overwritten. */
pk_status pk_redo_checkpoint(pk_redo *redo, uint64_t lsn);
/* Where the first record begins that was not released; where the next one would begin; up to where all is durable. 0 for NULL. */
uint64_t pk_redo_checkpoint_lsn(const pk_redo *redo);
uint64_t pk_redo_end_lsn(const pk_redo *redo);
uint64_t pk_redo_durable_lsn(const pk_redo *redo);
/* The longest record that can be appended, in bytes. 0 for NULL. */
uint64_t pk_redo_longest_record(const pk_redo *redo);
/* Makes all durable and closes it. The handle is given up, whatever is returned. */
pk_status pk_redo_close(pk_redo *redo);

/* Reads the records from lsn on: what pk_redo_checkpoint_lsn(), an append or a reader gave. */
pk_status pk_redo_read(pk_redo *redo, uint64_t lsn, pk_redo_reader **reader);
/* The next record: its bytes live until the next call with this reader. next is the LSN just past it, and may be NULL. PK_END after the last. */
pk_status pk_redo_next(pk_redo_reader *reader, const void **bytes, size_t *size, uint64_t *next);
void pk_redo_reader_close(pk_redo_reader *reader);

/* ---------------------------------------------------------------- binlog */

/* A log in segments without end, with followers: replicas, archivers. Its pages are released behind the last near follower. */
typedef struct pk_binlog pk_binlog;
typedef struct pk_follower pk_follower;

typedef struct pk_position {
  uint64_t segment;
  uint64_t offset;
} pk_position;

typedef struct pk_binlog_options {
  size_t struct_size;
  uint64_t max_segment_bytes; /* [1 GiB] */
  uint64_t sync_every;        /* groups: 1 is each, PK_SYNC_NEVER only when it is asked for [1] */
  uint32_t mode;              /* pk_log_mode */
  uint32_t read_only;         /* 1: not one byte is written */
} pk_binlog_options;
#define PK_BINLOG_OPTIONS_INIT { sizeof(pk_binlog_options), 0, 0, 0, 0 }
#define PK_SYNC_NEVER UINT64_MAX

typedef struct pk_record {
  const void *bytes;
  size_t size;
} pk_record;

/* A record that a follower read. Its bytes live until the next call with this follower. */
typedef struct pk_event {
  pk_record record;
  pk_position position; /* where it stands */
  pk_position next;     /* what to follow from after this one */
  int ends_group;       /* 1: the last one of its group */
} pk_event;

/* Opens the log in a directory, or makes one where it is empty or missing; options may be NULL. */
pk_status pk_binlog_open(const char *directory, const pk_binlog_options *options, pk_binlog **binlog);
/* Appends records that belong together; position, which may be NULL, is past them. They are durable when this returns, if sync_every is 1. */
pk_status pk_binlog_append(pk_binlog *binlog, const pk_record *records, size_t count, pk_position *position);
pk_status pk_binlog_sync(pk_binlog *binlog);
/* Seals the segment that is written to, and begins a new one. */
pk_status pk_binlog_rotate(pk_binlog *binlog);
/* Removes the segments before the position's own. PK_LOCKED where a follower has yet to read some of it, unless force is 1: that one gets PK_TOO_OLD. */
pk_status pk_binlog_purge(pk_binlog *binlog, pk_position position, int force);
/* Where the oldest record begins; past the last one; up to where all is durable. */
pk_status pk_binlog_first(pk_binlog *binlog, pk_position *position);
pk_status pk_binlog_end(pk_binlog *binlog, pk_position *position);
pk_status pk_binlog_durable_end(pk_binlog *binlog, pk_position *position);
/* Makes all durable and closes it. The handle is given up, whatever is returned. Followers read what is left, and end. */
pk_status pk_binlog_close(pk_binlog *binlog);

/* Follows the log from a position on; durable_only 1: a record is seen only when it is durable. */
pk_status pk_binlog_follow(pk_binlog *binlog, pk_position from, int durable_only, pk_follower **follower);
/* The next record; waits for up to timeout_ms (-1: as long as it takes). PK_TIMED_OUT where none came, PK_END when the log is closed and all of it was read. */
pk_status pk_follower_next(pk_follower *follower, int timeout_ms, pk_event *event);
void pk_follower_close(pk_follower *follower);

/* ---------------------------------------------------------------- page store */

/* A file of pages with atomic commits of many, that opens at once after a crash. One writer at a time, any number of readers, each with a snapshot. */
typedef struct pk_store pk_store;
typedef struct pk_write_txn pk_write_txn;
typedef struct pk_read_txn pk_read_txn;
typedef struct pk_store_page pk_store_page;

#define PK_NO_PAGE UINT64_MAX

/* When a commit returns. */
typedef enum pk_durability {
  PK_DURABLE = 0,       /* when it is durable; all who commit at the same time share a sync */
  PK_DURABLE_GROUP = 1, /* the same, but it leaves the sync to another who commits soon */
  PK_NOT_DURABLE = 2    /* at once: durable with the next one that is, or after a second */
} pk_durability;

typedef struct pk_store_options {
  size_t struct_size;
  uint64_t memory;        /* the budget in bytes [256 MiB] */
  uint64_t journal_bytes; /* the journal's limit, which bounds the time to open after a crash [256 MiB] */
  uint32_t page_size;     /* of a store that is made: a power of two from 4096 to 65536 [4096] */
  uint32_t create;        /* 0: if it is missing, 1: never, 2: it must not be there */
  uint32_t read_only;     /* 1: not one byte is written */
  uint32_t reserved;      /* 0 */
} pk_store_options;
#define PK_STORE_OPTIONS_INIT { sizeof(pk_store_options), 0, 0, 0, 0, 0, 0 }

typedef struct pk_store_stat {
  size_t struct_size;
  uint64_t page_size;        /* bytes of a page */
  uint64_t payload_size;     /* those of them that are yours */
  uint64_t pages;            /* that are or were in use */
  uint64_t free_pages;       /* those of them that are free */
  uint64_t seq;              /* the last commit */
  uint64_t checkpoint_seq;   /* the last that the data file is known to have */
  uint64_t journal_bytes;    /* that a recovery would read */
  uint64_t opening_ns;       /* what opening it took */
  uint64_t recovered_commits;/* that the opening found in the journal */
} pk_store_stat;
#define PK_STORE_STAT_INIT { sizeof(pk_store_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Opens the store in a directory; options may be NULL. */
pk_status pk_store_open(const char *directory, const pk_store_options *options, pk_store **store);
pk_status pk_store_get_stat(pk_store *store, pk_store_stat *stat);
/* Returns when all that was committed before is in the data file, durably. */
pk_status pk_store_sync(pk_store *store);
/* Checks every page, the free list and the superblocks, beside whatever goes on: how much is wrong. The first of it is in pk_error_message() where the
   call is PK_CORRUPT; faults may be NULL. */
pk_status pk_store_verify(pk_store *store, uint64_t *faults);
/* Copies the store as one commit left it to a directory that is made, beside whatever goes on; seq, which may be NULL, is that commit's number. */
pk_status pk_store_backup(pk_store *store, const char *to, uint64_t *seq);
/* Makes a store of a backup in a directory that is made, and checks every page of it; seq, which may be NULL, is the commit that it is as of. PK_CORRUPT where a
   page is damaged: then to is not there. */
pk_status pk_store_restore(const char *backup, const char *to, uint64_t *seq);
/* Closes it: what was committed is durable then. The handle is given up, whatever is returned. Transactions that are open keep the store open, and its
   directory locked, until they end. */
pk_status pk_store_close(pk_store *store);

/* Begins to write; waits until the transaction before is over. */
pk_status pk_store_begin_write(pk_store *store, pk_write_txn **txn);
pk_status pk_txn_allocate(pk_write_txn *txn, uint64_t *page);
/* So many pages in a row: the first of them. They read as never written until they are. */
pk_status pk_txn_allocate_run(pk_write_txn *txn, uint64_t pages, uint64_t *first);
pk_status pk_txn_free(pk_write_txn *txn, uint64_t page);
/* Copies up to size bytes of a page from offset on; read, how many, may be NULL. */
pk_status pk_txn_read(pk_write_txn *txn, uint64_t page, size_t offset, void *buffer, size_t size, size_t *read);
/* Changes a part of a page that was allocated or committed before. */
pk_status pk_txn_write(pk_write_txn *txn, uint64_t page, size_t offset, const void *bytes, size_t size);
/* Puts a whole page in place of what was there, which is not read for it: size is the payload's. */
pk_status pk_txn_put(pk_write_txn *txn, uint64_t page, const void *bytes, size_t size);
/* The page by which all others are found; PK_NO_PAGE: none. */
pk_status pk_txn_get_root(pk_write_txn *txn, uint64_t *page);
pk_status pk_txn_set_root(pk_write_txn *txn, uint64_t page);
/* Commits all or nothing; seq, the commit's number, may be NULL. The handle is given up, whatever is returned. */
pk_status pk_txn_commit(pk_write_txn *txn, pk_durability durability, uint64_t *seq);
/* Gives it up: nothing changes. */
void pk_txn_abort(pk_write_txn *txn);

/* A snapshot: all pages as one commit left them. Waits for nobody. */
pk_status pk_store_begin_read(pk_store *store, pk_read_txn **txn);
pk_status pk_snapshot_root(pk_read_txn *txn, uint64_t *page);
/* The number of the commit that is seen; 0 for NULL. */
uint64_t pk_snapshot_seq(const pk_read_txn *txn);
pk_status pk_snapshot_read(pk_read_txn *txn, uint64_t page, size_t offset, void *buffer, size_t size, size_t *read);
/* A page in place: it stays as it is whatever is committed, and keeps a page of memory in use until it is released. */
pk_status pk_snapshot_page(pk_read_txn *txn, uint64_t number, pk_store_page **page);
const void *pk_store_page_data(const pk_store_page *page);
size_t pk_store_page_size(const pk_store_page *page);
void pk_store_page_release(pk_store_page *page);
void pk_snapshot_end(pk_read_txn *txn);

/* ---------------------------------------------------------------- ordered map */

/* An ordered map of byte strings in the pages of a store: a B+tree. It is named by its root page, which it keeps as long as it lives; a store has any number
   of them. Keys of 0 to 512 bytes in the order of their bytes, values of up to 4 GiB less a byte (PK_TOO_LARGE beyond). After a change that failed
   otherwise the transaction holds some of it: abort it. PK_CORRUPT where the page is not a tree's. */
typedef struct pk_cursor pk_cursor;

pk_status pk_tree_create(pk_write_txn *txn, uint64_t *root);
/* Gives all pages of a tree back. */
pk_status pk_tree_delete(pk_write_txn *txn, uint64_t root);
pk_status pk_tree_put(pk_write_txn *txn, uint64_t root, const void *key, size_t key_size, const void *value, size_t value_size);
/* PK_NOT_FOUND where there is no such key. */
pk_status pk_tree_remove(pk_write_txn *txn, uint64_t root, const void *key, size_t key_size);
/* Copies up to size bytes of a value; value_size, all that it has, may be NULL. PK_NOT_FOUND where there is no such key. */
pk_status pk_tree_get(pk_read_txn *txn, uint64_t root, const void *key, size_t key_size, void *buffer, size_t size, size_t *value_size);
/* The same, with what the transaction has changed so far. */
pk_status pk_txn_tree_get(pk_write_txn *txn, uint64_t root, const void *key, size_t key_size, void *buffer, size_t size, size_t *value_size);

/* The entries from a key on, or backwards from a key, that included; size 0: from the first, or the last, on. The snapshot may end before the cursor does,
   and is kept by it. */
pk_status pk_cursor_open(pk_read_txn *txn, uint64_t root, const void *from, size_t from_size, int backwards, pk_cursor **cursor);
/* The next entry, in place until the next call on the cursor; PK_END: there is none. It reads ahead: up to 32 entries, of 32 KiB together but for the last. */
pk_status pk_cursor_next(pk_cursor *cursor, const void **key, size_t *key_size, const void **value, size_t *value_size);
void pk_cursor_close(pk_cursor *cursor);

/* ---------------------------------------------------------------- the kernel's page cache */

typedef struct pk_residency {
  size_t struct_size;
  uint64_t resident_bytes;  /* in the page cache */
  uint64_t dirty_bytes;     /* changed and not yet written; UINT64_MAX where that can't be known */
  uint64_t writeback_bytes; /* being written; the same */
} pk_residency;
#define PK_RESIDENCY_INIT { sizeof(pk_residency), 0, 0, 0 }
#define PK_TO_END UINT64_MAX

/* What the kernel's page cache holds of a file's range; size PK_TO_END: up to its end. PK_IO with EPERM where this user may not know. */
pk_status pk_resident(const char *path, uint64_t offset, uint64_t size, pk_residency *residency);
/* Writes what is dirty, and drops the pages from the page cache; the data stays. Waits for up to timeout_ms (-1: a minute). How many bytes are gone and how
   many stayed (mapped, busy) may each be NULL. */
pk_status pk_release(const char *path, uint64_t offset, uint64_t size, int timeout_ms, uint64_t *released, uint64_t *kept);
/* Reads what is missing into the page cache; loaded, in bytes, may be NULL. */
pk_status pk_warm(const char *path, uint64_t offset, uint64_t size, uint64_t *loaded);

#ifdef __cplusplus
}
#endif

#endif
