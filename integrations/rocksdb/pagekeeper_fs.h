// A RocksDB FileSystem that reads table files through pagekeeper's page cache and writes them past the
// kernel's.
//
// It wraps another file system (the default one), which handles everything except table and blob files: WAL,
// MANIFEST, locks, directories. Pages of a WAL are released behind its syncs. Table files never change once
// they are written, as the page cache requires. If a file was replaced under its name (numbers are reused,
// files are ingested), its inode, length and change time show that, and it is opened again.
//
// Errors are IOStatus values with the path and the system's error, as RocksDB expects. If the page cache
// cannot open a table, the target file system does. Where tables go through the kernel's page cache, RocksDB's
// info log says so. A forked child without exec cannot read through its parent's caches.
#pragma once

#include <memory>
#include <string>

#include <rocksdb/file_system.h>

namespace pagekeeper_rocksdb {

// The settings in a URI: "pagekeeper://?cache=2g&page=4096&write=direct&wal=release".
struct Settings {
  uint64_t cache_bytes = uint64_t{256} << 20;
  uint32_t page_bytes = 0;  // pagekeeper's default
  bool bulk_writes = true;
  bool release_logs = true;

  // Returns false, with the reason in `why`, if the URI has an invalid setting.
  static bool parse(const std::string& uri, Settings* settings, std::string* why);
};

// Creates a file system with these settings in front of `target`. Within a process, file systems with equal
// settings share one page cache.
rocksdb::IOStatus make_file_system(const Settings& settings, const std::shared_ptr<rocksdb::FileSystem>& target,
                                   std::unique_ptr<rocksdb::FileSystem>* made);

// Creates the file system of a URI in front of RocksDB's own. This is the form of RocksDB's factory
// functions.
rocksdb::FileSystem* make_by_uri(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* guard, std::string* why);

// Returns RocksDB's default file system; implemented by preload.cc or builtin.cc.
std::shared_ptr<rocksdb::FileSystem> own_file_system();

}  // namespace pagekeeper_rocksdb

namespace rocksdb {
class ObjectLibrary;
}

// Adds the factory to RocksDB's own and returns the number of factories. RocksDB's build looks for it by its
// C name.
extern "C" int register_pagekeeper(rocksdb::ObjectLibrary& library, const std::string& argument);
