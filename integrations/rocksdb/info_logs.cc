#include "info_logs.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

namespace pagekeeper_rocksdb {

std::string why_not_direct(const std::string& path, uint64_t block) {
// Since Linux 6.1, as are the headers that define it.
#ifdef STATX_DIOALIGN
  struct statx found;
  if (statx(AT_FDCWD, path.c_str(), 0, STATX_DIOALIGN, &found) == 0 && (found.stx_mask & STATX_DIOALIGN) != 0 && found.stx_dio_offset_align > block)
    return "direct I/O needs blocks of " + std::to_string(found.stx_dio_offset_align) + " bytes here, more than " + std::to_string(block);
#endif
  (void)path, (void)block;
  return "the file system offers no direct I/O for it";
}

void InfoLogs::add(const std::shared_ptr<rocksdb::Logger>& log) {
  std::lock_guard<std::mutex> lock(mutex_);
  logs_.erase(std::remove_if(logs_.begin(), logs_.end(), [](const Log& known) { return known.log.expired(); }), logs_.end());
  logs_.push_back({log, {}});
}

void InfoLogs::say_cached(const std::string& table, const char* how, const std::string& why) {
  const std::string about = how + table.substr(0, table.rfind('/') + 1);
  const std::string line = "pagekeeper: " + table + " is " + how + " through the kernel's page cache: " + why;
  bool is_logged = false;
  std::lock_guard<std::mutex> lock(mutex_);
  for (Log& known : logs_) {
    const std::shared_ptr<rocksdb::Logger> log = known.log.lock();
    if (log == nullptr) continue;
    is_logged = true;
    if (known.said.insert(about).second) rocksdb::Warn(log, "%s", line.c_str());
  }
  if (!is_logged && said_on_stderr_.insert(about).second) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace pagekeeper_rocksdb
