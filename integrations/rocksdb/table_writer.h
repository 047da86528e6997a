// Table files, written past the kernel's page cache.
#pragma once

#include <memory>
#include <string>

#include <pagekeeper.h>
#include <rocksdb/file_system.h>

namespace pagekeeper_rocksdb {

// Creates a table file. Returns PK_EXISTS if the file exists.
pk_status create_table(const std::string& path, const rocksdb::FileOptions& options, std::unique_ptr<rocksdb::FSWritableFile>* file);

}  // namespace pagekeeper_rocksdb
