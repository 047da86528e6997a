// Table files, read through the page cache.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <pagekeeper.h>
#include <rocksdb/file_system.h>

namespace pagekeeper_rocksdb {

// Opens a table file in the cache.
rocksdb::IOStatus open_table(pk_cache* cache, const std::string& path, std::unique_ptr<rocksdb::FSRandomAccessFile>* file);

// Waits for reads that were begun by ReadAsync() of such a file, and calls back.
rocksdb::IOStatus poll_reads(std::vector<void*>& handles);
// Waits for them, and calls back that they were aborted.
rocksdb::IOStatus abort_reads(std::vector<void*>& handles);

}  // namespace pagekeeper_rocksdb
