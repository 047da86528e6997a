#include "pagekeeper_fs.h"

#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <pagekeeper.h>
#include <rocksdb/options.h>

#include "info_logs.h"
#include "log_writer.h"
#include "status.h"
#include "table_reader.h"
#include "table_writer.h"

namespace pagekeeper_rocksdb {
namespace {

using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::IODebugContext;
using rocksdb::IOStatus;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Whether the file is written once and read only when it is complete: tables, and blobs except those of the
// stacked BlobDB.
bool is_table(const std::string& path) {
  return ends_with(path, ".sst") || ends_with(path, ".ldb") || (ends_with(path, ".blob") && path.find("/blob_dir/") == std::string::npos);
}

// Marks a log to be kept, from OptimizeForLogWrite() to NewWritableFile().
const char* const kKeepLog = "pagekeeper.keep_log";

// Bytes that a compaction reads ahead, unless the database's options have a number.
constexpr size_t kCompactionReadAhead = 2 << 20;

// A file of the target file system. Its reads are never asynchronous: Poll() could not handle their handles.
class TargetReader : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  using rocksdb::FSRandomAccessFileOwnerWrapper::FSRandomAccessFileOwnerWrapper;
  IOStatus ReadAsync(rocksdb::FSReadRequest& request, const rocksdb::IOOptions& options,
                     std::function<void(const rocksdb::FSReadRequest&, void*)> callback, void* argument, void** handle,
                     rocksdb::IOHandleDeleter* deleter, IODebugContext* dbg) override {
    return rocksdb::FSRandomAccessFile::ReadAsync(request, options, std::move(callback), argument, handle, deleter, dbg);
  }
};

// The caches of the process, by their settings. They live as long as the process: RocksDB's own statics may
// outlive any owner here.
IOStatus shared_cache(const Settings& settings, pk_cache** cache) {
  static std::mutex mutex;
  static auto* caches = new std::map<std::tuple<uint64_t, uint32_t>, pk_cache*>();
  std::lock_guard<std::mutex> lock(mutex);
  pk_cache*& found = (*caches)[{settings.cache_bytes, settings.page_bytes}];
  if (found == nullptr) {
    pk_cache_options options = PK_CACHE_OPTIONS_INIT;
    options.memory = settings.cache_bytes;
    options.page_size = settings.page_bytes;
    pk_cache* made = nullptr;
    const pk_status status = pk_cache_open(&options, &made);
    if (status != PK_OK) return to_status(status, "pagekeeper's cache");
    found = made;
  }
  *cache = found;
  return IOStatus::OK();
}

class PagekeeperFileSystem : public rocksdb::FileSystemWrapper {
 public:
  PagekeeperFileSystem(const Settings& settings, pk_cache* cache, const std::shared_ptr<FileSystem>& target)
      : rocksdb::FileSystemWrapper(target), settings_(settings), cache_(cache) {}

  static const char* kClassName() { return "pagekeeper"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options, std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                               IODebugContext* dbg) override {
    // A reader that asked for mappings gets them: it keeps what they point to.
    IOStatus refused;
    if (is_table(path) && !options.use_mmap_reads) {
      refused = open_table(cache_, path, *logs_, file);
      // If the cache can't open the file, the target file system does.
      if (refused.ok() || refused.IsPathNotFound()) return refused;
    }
    std::unique_ptr<rocksdb::FSRandomAccessFile> below;
    IOStatus opened = target()->NewRandomAccessFile(path, options, &below, dbg);
    if (!opened.ok()) return opened;
    if (!refused.ok()) logs_->say_cached(path, "read", refused.ToString());
    *file = std::make_unique<TargetReader>(std::move(below));
    return opened;
  }

  // For backups, and ingestion by copy, which read whole tables.
  IOStatus NewSequentialFile(const std::string& path, const FileOptions& options, std::unique_ptr<rocksdb::FSSequentialFile>* file,
                             IODebugContext* dbg) override {
    if (is_table(path) && !options.use_mmap_reads) {
      FileOptions direct = options;
      direct.use_direct_reads = true;
      IOStatus opened = target()->NewSequentialFile(path, direct, file, dbg);
      if (opened.ok() || opened.IsPathNotFound()) return opened;
    }
    return target()->NewSequentialFile(path, options, file, dbg);
  }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options, std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* dbg) override {
    if (!is_table(path) || !settings_.bulk_writes || options.use_mmap_writes) {
      IOStatus made = target()->NewWritableFile(path, options, file, dbg);
      if (made.ok() && is_log(path) && releases(options)) *file = release_behind(std::move(*file));
      return made;
    }
    pk_status made = create_table(path, options, logs_, file);
    if (made == PK_EXISTS) {
      // Replaces an existing file, as the default file system does; readers of the old one keep it.
      IOStatus removed = target()->DeleteFile(path, options.io_options, dbg);
      if (!removed.ok()) return removed;
      made = create_table(path, options, logs_, file);
    }
    return to_status(made, path);
  }

  // The info log of a database that is opened.
  IOStatus NewLogger(const std::string& path, const rocksdb::IOOptions& options, std::shared_ptr<rocksdb::Logger>* log, IODebugContext* dbg) override {
    IOStatus made = target()->NewLogger(path, options, log, dbg);
    if (made.ok()) logs_->add(*log);
    return made;
  }

  // A recycled log is overwritten in parts of pages: each released page would be read back for that.
  FileOptions OptimizeForLogWrite(const FileOptions& options, const rocksdb::DBOptions& db_options) const override {
    FileOptions optimized = target()->OptimizeForLogWrite(options, db_options);
    if (db_options.recycle_log_file_num > 0) optimized.io_options.property_bag[kKeepLog] = "1";
    return optimized;
  }

  // Without this a compaction reads block by block, and leaves it to the kernel to read ahead.
  FileOptions OptimizeForCompactionTableRead(const FileOptions& options, const rocksdb::ImmutableDBOptions& db_options) const override {
    FileOptions optimized = target()->OptimizeForCompactionTableRead(options, db_options);
    if (optimized.compaction_readahead_size == 0 && !optimized.use_mmap_reads) optimized.compaction_readahead_size = kCompactionReadAhead;
    return optimized;
  }

  IOStatus Poll(std::vector<void*>& handles, size_t) override { return poll_reads(handles); }
  IOStatus AbortIO(std::vector<void*>& handles) override { return abort_reads(handles); }

 private:
  bool releases(const FileOptions& options) const {
    return settings_.release_logs && !options.use_mmap_writes && options.io_options.property_bag.count(kKeepLog) == 0;
  }

  Settings settings_;
  pk_cache* cache_;
  const std::shared_ptr<InfoLogs> logs_ = std::make_shared<InfoLogs>();
};

// Parses a size: "64m", "2g", "4096".
bool parse_size(const std::string& text, uint64_t* bytes) {
  size_t end = 0;
  unsigned long long number = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  try {
    number = std::stoull(text, &end);
  } catch (const std::exception&) {
    return false;
  }
  unsigned shift = 0;
  const std::string unit = text.substr(end);
  if (unit == "k" || unit == "K") shift = 10;
  else if (unit == "m" || unit == "M") shift = 20;
  else if (unit == "g" || unit == "G") shift = 30;
  else if (!unit.empty()) return false;
  if (number > (UINT64_MAX >> shift)) return false;
  *bytes = static_cast<uint64_t>(number) << shift;
  return true;
}

}  // namespace

bool Settings::parse(const std::string& uri, Settings* settings, std::string* why) {
  const std::string scheme = "pagekeeper://";
  if (uri.compare(0, scheme.size(), scheme) != 0) {
    *why = "no pagekeeper:// URI";
    return false;
  }
  std::string rest = uri.substr(scheme.size());
  if (!rest.empty() && rest[0] == '?') rest.erase(0, 1);
  while (!rest.empty()) {
    const size_t end = rest.find('&');
    const std::string part = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    uint64_t bytes = 0;
    if (name == "cache" && parse_size(value, &bytes) && bytes > 0) {
      settings->cache_bytes = bytes;
    } else if (name == "page" && parse_size(value, &bytes) && bytes > 0 && bytes <= 65536) {
      settings->page_bytes = static_cast<uint32_t>(bytes);
    } else if (name == "write" && (value == "direct" || value == "plain")) {
      settings->bulk_writes = value == "direct";
    } else if (name == "wal" && (value == "release" || value == "keep")) {
      settings->release_logs = value == "release";
    } else {
      *why = "\"" + part + "\" is no setting: cache=2g, page=4k to 64k, write=direct or plain, wal=release or keep";
      return false;
    }
  }
  return true;
}

IOStatus make_file_system(const Settings& settings, const std::shared_ptr<FileSystem>& target, std::unique_ptr<FileSystem>* made) {
  pk_cache* cache = nullptr;
  IOStatus opened = shared_cache(settings, &cache);
  if (opened.ok()) *made = std::make_unique<PagekeeperFileSystem>(settings, cache, target);
  return opened;
}

}  // namespace pagekeeper_rocksdb
