// A RocksDB FileSystem whose table files are read through pagekeeper's page cache and written past the kernel's.
//
// It stands before another file system (the default one), to which goes all that is not a table or blob file: WAL, MANIFEST, locks,
// directories. Pages of a WAL are released behind its syncs. Table files never change once they are written, which is what the page cache asks for. One that was replaced under its
// name (numbers are used again, files are ingested) is known by its inode, length and time of change, and is opened anew.
//
// How it fails: as RocksDB expects, by an IOStatus with the path and the system's error. A table that the page cache can't open is opened by the
// file system below. In a child of fork that does not go on to exec nothing can be read through a cache of its parent.
#pragma once

#include <memory>
#include <string>

#include <rocksdb/file_system.h>

namespace pagekeeper_rocksdb {

// What a URI asks for: "pagekeeper://?cache=2g&page=4096&write=direct&wal=release".
struct Settings {
  uint64_t cache_bytes = uint64_t{256} << 20;
  uint32_t page_bytes = 0;  // pagekeeper's default
  bool bulk_writes = true;
  bool release_logs = true;

  // False, and why, where the URI has something that is no setting.
  static bool parse(const std::string& uri, Settings* settings, std::string* why);
};

// A file system with these settings before `target`. All of a process that are made with the same settings share one page cache.
rocksdb::IOStatus make_file_system(const Settings& settings, const std::shared_ptr<rocksdb::FileSystem>& target,
                                   std::unique_ptr<rocksdb::FileSystem>* made);

// The file system that a URI asks for, before RocksDB's own: RocksDB's factory functions have this form.
rocksdb::FileSystem* make_by_uri(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* guard, std::string* why);

// The file system that RocksDB has by itself: one of preload.cc and builtin.cc knows how to come by it.
std::shared_ptr<rocksdb::FileSystem> own_file_system();

}  // namespace pagekeeper_rocksdb

namespace rocksdb {
class ObjectLibrary;
}

// Adds the factory to RocksDB's own: how many that are. RocksDB's build looks for it by its name in C.
extern "C" int register_pagekeeper(rocksdb::ObjectLibrary& library, const std::string& argument);
