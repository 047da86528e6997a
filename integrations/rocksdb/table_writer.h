// Table files, written past the kernel's page cache.
#pragma once

#include <memory>
#include <string>

#include <pagekeeper.h>
#include <rocksdb/file_system.h>

#include "info_logs.h"

namespace pagekeeper_rocksdb {

// Creates a table file; fails with PK_EXISTS if it exists. The logs name a file that can't be written past the kernel's page cache.
pk_status create_table(const std::string& path, const rocksdb::FileOptions& options, const std::shared_ptr<InfoLogs>& logs,
                       std::unique_ptr<rocksdb::FSWritableFile>* file);

}  // namespace pagekeeper_rocksdb
