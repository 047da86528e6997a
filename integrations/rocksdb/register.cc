// Registers "pagekeeper://" with RocksDB.
#include <memory>
#include <string>

#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>

#include "pagekeeper_fs.h"

namespace pagekeeper_rocksdb {

using rocksdb::FileSystem;

FileSystem* make_by_uri(const std::string& uri, std::unique_ptr<FileSystem>* guard, std::string* why) {
  Settings settings;
  if (!Settings::parse(uri, &settings, why)) return nullptr;
  std::shared_ptr<FileSystem> target = own_file_system();
  if (target == nullptr) {
    *why = "RocksDB's own file system was not found: is it linked into the program?";
    return nullptr;
  }
  rocksdb::IOStatus made = make_file_system(settings, target, guard);
  if (!made.ok()) *why = made.ToString();
  return guard->get();
}

}  // namespace pagekeeper_rocksdb

// RocksDB calls it if it was built with this plugin.
int register_pagekeeper(rocksdb::ObjectLibrary& library, const std::string&) {
  library.AddFactory<rocksdb::FileSystem>(rocksdb::ObjectLibrary::PatternEntry("pagekeeper", false).AddSeparator("://", false),
                                          pagekeeper_rocksdb::make_by_uri);
  return 1;
}
