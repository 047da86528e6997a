// As a part of RocksDB: the target file system is RocksDB's own default, which is not replaced.
#include "pagekeeper_fs.h"

namespace pagekeeper_rocksdb {

std::shared_ptr<rocksdb::FileSystem> own_file_system() { return rocksdb::FileSystem::Default(); }

}  // namespace pagekeeper_rocksdb
