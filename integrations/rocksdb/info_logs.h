// RocksDB's info logs (LOG), where tables that go through the kernel's page cache are named.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <rocksdb/env.h>

namespace pagekeeper_rocksdb {

// Returns the reason that a file has no direct I/O in blocks of this many bytes, by statx(2).
std::string why_not_direct(const std::string& path, uint64_t block);

// Knows the logs that its file system has made. A program that brings a log of its own, or none, gets its lines on stderr.
class InfoLogs {
 public:
  void add(const std::shared_ptr<rocksdb::Logger>& log);
  // Says that a table is read or written through the kernel's page cache, and why: once for each directory in each log.
  void say_cached(const std::string& table, const char* how, const std::string& why);

 private:
  struct Log {
    std::weak_ptr<rocksdb::Logger> log;
    std::set<std::string> said;
  };

  std::mutex mutex_;
  std::vector<Log> logs_;
  std::set<std::string> said_on_stderr_;
};

}  // namespace pagekeeper_rocksdb
