// Table files, read through the page cache.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <pagekeeper.h>
#include <rocksdb/file_system.h>

#include "info_logs.h"

namespace pagekeeper_rocksdb {

// Opens a table file in the cache. The logs name a file that the cache must read through the kernel's page cache.
rocksdb::IOStatus open_table(pk_cache* cache, const std::string& path, InfoLogs& logs, std::unique_ptr<rocksdb::FSRandomAccessFile>* file);

// Waits for reads that ReadAsync() of such a file started, and calls back.
rocksdb::IOStatus poll_reads(std::vector<void*>& handles);
// Waits for such reads, and calls back with the status that they were aborted.
rocksdb::IOStatus abort_reads(std::vector<void*>& handles);

}  // namespace pagekeeper_rocksdb
