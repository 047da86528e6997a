// Write-ahead logs, whose pages leave the kernel's page cache as they are synced.
#pragma once

#include <memory>
#include <string>

#include <rocksdb/file_system.h>

namespace pagekeeper_rocksdb {

// Whether a path is a write-ahead log's: "000123.log".
bool is_log(const std::string& path);

// A log that `target` writes, and that is released behind its syncs. One that will be written over (recycle_log_file_num) is not for it.
std::unique_ptr<rocksdb::FSWritableFile> release_behind(std::unique_ptr<rocksdb::FSWritableFile>&& target);

}  // namespace pagekeeper_rocksdb
