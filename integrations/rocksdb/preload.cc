// As a preloaded library: registers "pagekeeper://" with RocksDB when it is loaded. If PAGEKEEPER_ROCKSDB is
// set to "all", or to a URI with settings, it also replaces the default file system.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>

#include "pagekeeper_fs.h"

namespace pagekeeper_rocksdb {

using rocksdb::FileSystem;

std::shared_ptr<FileSystem> own_file_system() {
  using Default = std::shared_ptr<FileSystem> (*)();
  static const auto next = reinterpret_cast<Default>(dlsym(RTLD_NEXT, "_ZN7rocksdb10FileSystem7DefaultEv"));
  return next == nullptr ? nullptr : next();
}

namespace {
const int registered = register_pagekeeper(*rocksdb::ObjectLibrary::Default(), "");
}  // namespace

}  // namespace pagekeeper_rocksdb

namespace rocksdb {

// The loader finds it before RocksDB's own if the library is preloaded.
std::shared_ptr<FileSystem> FileSystem::Default() {
  (void)pagekeeper_rocksdb::registered;
  static auto* chosen = new std::shared_ptr<FileSystem>([] {
    std::shared_ptr<FileSystem> own = pagekeeper_rocksdb::own_file_system();
    const char* asked = std::getenv("PAGEKEEPER_ROCKSDB");
    if (asked == nullptr || *asked == '\0' || own == nullptr) return own;
    const std::string uri = std::string(asked) == "all" ? "pagekeeper://" : asked;
    std::unique_ptr<FileSystem> made;
    std::string why;
    if (pagekeeper_rocksdb::make_by_uri(uri, &made, &why) == nullptr) {
      // Reported once; the program continues without it.
      std::fprintf(stderr, "pagekeeper: PAGEKEEPER_ROCKSDB=%s is not used: %s\n", asked, why.c_str());
      return own;
    }
    return std::shared_ptr<FileSystem>(std::move(made));
  }());
  return *chosen;
}

}  // namespace rocksdb
