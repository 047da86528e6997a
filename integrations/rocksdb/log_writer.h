// Write-ahead logs whose pages leave the kernel's page cache as they are synced.
#pragma once

#include <memory>
#include <string>

#include <rocksdb/file_system.h>

namespace pagekeeper_rocksdb {

// Whether this is the path of a write-ahead log: "000123.log".
bool is_log(const std::string& path);

// Returns a log that writes to `target` and releases pages behind its syncs. Not for logs that will be
// overwritten (recycle_log_file_num).
std::unique_ptr<rocksdb::FSWritableFile> release_behind(std::unique_ptr<rocksdb::FSWritableFile>&& target);

}  // namespace pagekeeper_rocksdb
