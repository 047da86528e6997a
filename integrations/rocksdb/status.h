// Converts a status of pagekeeper.h to RocksDB's, with message and errno of the call that failed on this
// thread.
#pragma once

#include <cerrno>
#include <string>

#include <pagekeeper.h>
#include <rocksdb/io_status.h>

namespace pagekeeper_rocksdb {

inline rocksdb::IOStatus to_status(pk_status status, const std::string& path) {
  using rocksdb::IOStatus;
  if (status == PK_OK) return IOStatus::OK();
  const std::string words = pk_error_message();
  switch (status) {
    case PK_FULL: {
      IOStatus full = IOStatus::NoSpace(path, words);
      full.SetRetryable(true);
      return full;
    }
    case PK_NOT_FOUND:
      return IOStatus::PathNotFound(path, words);
    case PK_CORRUPT:
    case PK_REJECTED:
      return IOStatus::Corruption(path, words);
    case PK_MISUSE:
      return IOStatus::InvalidArgument(path, words);
    case PK_UNSUPPORTED:
      return IOStatus::NotSupported(path, words);
    default:
      return IOStatus::IOError(path, words);
  }
}

}  // namespace pagekeeper_rocksdb
