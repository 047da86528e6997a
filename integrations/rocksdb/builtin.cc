// As a part of RocksDB: the file system below is RocksDB's own, and nothing takes its place by itself.
#include "pagekeeper_fs.h"

namespace pagekeeper_rocksdb {

std::shared_ptr<rocksdb::FileSystem> own_file_system() { return rocksdb::FileSystem::Default(); }

}  // namespace pagekeeper_rocksdb
