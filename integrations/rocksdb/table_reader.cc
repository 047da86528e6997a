#include "table_reader.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "status.h"

namespace pagekeeper_rocksdb {
namespace {

using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// An asynchronous read. RocksDB deletes it after Poll() or AbortIO().
class PendingRead {
 public:
  PendingRead(FSReadRequest& request, std::string path, std::function<void(const FSReadRequest&, void*)> callback, void* argument)
      : path_(std::move(path)), callback_(std::move(callback)), argument_(argument) {
    request_.offset = request.offset;
    request_.len = request.len;
    request_.scratch = request.scratch;
  }

  IOStatus begin(pk_file* file) {
    return to_status(pk_file_read_async(file, request_.offset, request_.scratch, request_.len, done, this), path_);
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    over_.wait(lock, [this] { return is_over_; });
  }

  void call_back() {
    if (callback_) std::exchange(callback_, nullptr)(request_, argument_);
  }

  // As in RocksDB's own: the callback lets the caller free its state.
  void abort() {
    request_.status = IOStatus::Aborted();
    request_.result = Slice();
    call_back();
  }

 private:
  static void done(void* self, pk_status status, size_t read) {
    auto* pending = static_cast<PendingRead*>(self);
    IOStatus outcome = to_status(status, pending->path_);
    // Notifies under the lock: the waiter may delete this object as soon as the lock is released.
    std::lock_guard<std::mutex> lock(pending->mutex_);
    pending->request_.status = std::move(outcome);
    pending->request_.result = Slice(pending->request_.scratch, read);
    pending->is_over_ = true;
    pending->over_.notify_all();
  }

  FSReadRequest request_;
  std::string path_;
  std::function<void(const FSReadRequest&, void*)> callback_;
  void* argument_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
};

class TableReader : public rocksdb::FSRandomAccessFile {
 public:
  TableReader(pk_file* file, std::string path) : file_(file), path_(std::move(path)) {}
  ~TableReader() override { pk_file_close(file_); }
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch, IODebugContext*) const override {
    size_t read = 0;
    const pk_status status = pk_file_read(file_, offset, scratch, n, &read);
    *result = Slice(scratch, read);
    return status == PK_OK ? IOStatus::OK() : to_status(status, path_);
  }

  IOStatus MultiRead(FSReadRequest* requests, size_t count, const IOOptions&, IODebugContext*) override {
    std::vector<pk_read> reads(count);
    for (size_t nth = 0; nth < count; nth++) reads[nth] = {requests[nth].offset, requests[nth].scratch, requests[nth].len, 0, PK_INTERNAL};
    pk_file_read_many(file_, reads.data(), count);
    for (size_t nth = 0; nth < count; nth++) {
      requests[nth].status = reads[nth].status == PK_OK ? IOStatus::OK() : to_status(reads[nth].status, path_);
      requests[nth].result = Slice(requests[nth].scratch, reads[nth].read);
    }
    return IOStatus::OK();
  }

  IOStatus ReadAsync(FSReadRequest& request, const IOOptions&, std::function<void(const FSReadRequest&, void*)> callback, void* argument,
                     void** handle, rocksdb::IOHandleDeleter* deleter, IODebugContext*) override {
    auto pending = std::make_unique<PendingRead>(request, path_, std::move(callback), argument);
    IOStatus begun = pending->begin(file_);
    if (!begun.ok()) return begun;
    *handle = pending.release();
    *deleter = [](void* begun_read) { delete static_cast<PendingRead*>(begun_read); };
    return begun;
  }

  IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions&, IODebugContext*) override {
    return to_status(pk_file_prefetch(file_, offset, n), path_);
  }

  // The kernel's page cache has none of its pages. pagekeeper's cache evicts by its own rules.
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }

 private:
  pk_file* file_;
  std::string path_;
};

}  // namespace

IOStatus open_table(pk_cache* cache, const std::string& path, InfoLogs& logs, std::unique_ptr<rocksdb::FSRandomAccessFile>* file) {
  pk_file* opened = nullptr;
  const pk_status status = pk_file_open(cache, path.c_str(), &opened);
  if (status != PK_OK) return to_status(status, path);
  if (!pk_file_is_direct(opened)) {
    pk_cache_stats stats = PK_CACHE_STATS_INIT;
    pk_cache_get_stats(cache, &stats);
    logs.say_cached(path, "read", why_not_direct(path, stats.page_size));
  }
  *file = std::make_unique<TableReader>(opened, path);
  return IOStatus::OK();
}

IOStatus poll_reads(std::vector<void*>& handles) {
  for (void* handle : handles)
    if (auto* pending = static_cast<PendingRead*>(handle)) {
      pending->wait();
      pending->call_back();
    }
  return IOStatus::OK();
}

IOStatus abort_reads(std::vector<void*>& handles) {
  for (void* handle : handles)
    if (auto* pending = static_cast<PendingRead*>(handle)) {
      pending->wait();
      pending->abort();
    }
  return IOStatus::OK();
}

}  // namespace pagekeeper_rocksdb
