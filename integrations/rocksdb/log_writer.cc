#include "log_writer.h"

#include <atomic>
#include <memory>
#include <utility>

#include <pagekeeper.h>

namespace pagekeeper_rocksdb {
namespace {

using rocksdb::DataVerificationInfo;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Synced bytes per release: a call for each small commit would cost more than it gains.
constexpr uint64_t kStep = uint64_t{1} << 20;
// Size of the largest folio. A release that ends inside a large folio leaves it, so the next release begins
// this much before its end.
constexpr uint64_t kLargestFolio = uint64_t{2} << 20;
constexpr uint64_t kPage = 4096;

// Releases are advice given through the writing descriptor: they lose no data, and a failure is not an error.
// The page of the next record stays. RocksDB may sync in one thread while it appends in another. So positions
// are atomic, and the thread that advances `released_` gives the advice.
//
// A forked child is refused, and its copy is never closed: a close would truncate its parent's log to the
// length at the time of the fork.
class LogWriter : public rocksdb::FSWritableFileWrapper {
 public:
  explicit LogWriter(std::unique_ptr<FSWritableFile>&& target) : rocksdb::FSWritableFileWrapper(target.get()), owned_(std::move(target)) {}
  ~LogWriter() override {
    if (is_forked()) owned_.release();
  }
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* dbg) override {
    if (is_forked()) return forked();
    return counted(data.size(), target()->Append(data, options, dbg));
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const DataVerificationInfo& verification, IODebugContext* dbg) override {
    if (is_forked()) return forked();
    return counted(data.size(), target()->Append(data, options, verification, dbg));
  }

  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options, IODebugContext* dbg) override {
    return is_forked() ? forked() : target()->PositionedAppend(data, offset, options, dbg);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options, const DataVerificationInfo& verification,
                            IODebugContext* dbg) override {
    return is_forked() ? forked() : target()->PositionedAppend(data, offset, options, verification, dbg);
  }

  IOStatus Flush(const IOOptions& options, IODebugContext* dbg) override { return is_forked() ? forked() : target()->Flush(options, dbg); }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* dbg) override {
    return is_forked() ? forked() : target()->Truncate(size, options, dbg);
  }

  IOStatus Sync(const IOOptions& options, IODebugContext* dbg) override {
    if (is_forked()) return forked();
    const uint64_t written = written_.load();
    return synced(written, target()->Sync(options, dbg));
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    if (is_forked()) return forked();
    const uint64_t written = written_.load();
    return synced(written, target()->Fsync(options, dbg));
  }

  // wal_bytes_per_sync: the writeback that the previous call started is usually over by now. Pages that are
  // still dirty, and more than a folio behind the end at the next call, stay until the log is closed.
  IOStatus RangeSync(uint64_t offset, uint64_t size, const IOOptions& options, IODebugContext* dbg) override {
    if (is_forked()) return forked();
    IOStatus begun = target()->RangeSync(offset, size, options, dbg);
    if (begun.ok()) release(begun_.exchange(offset + size));
    return begun;
  }

  IOStatus Close(const IOOptions& options, IODebugContext* dbg) override {
    if (is_forked()) return forked();
    // Everything except a partial last page, which the truncation of unused space would read back. A length
    // of 0 would mean the whole file.
    const uint64_t written = written_.load(), end = written - written % kPage;
    if (synced_.load() == written && end > 0) target()->InvalidateCache(0, end).PermitUncheckedError();
    return target()->Close(options, dbg);
  }

 private:
  bool is_forked() const { return pk_process_number() != process_; }
  static IOStatus forked() { return IOStatus::IOError("a log", "opened before this process was forked: only the process that opened it can use it"); }

  IOStatus counted(size_t size, IOStatus appended) {
    if (appended.ok()) written_ += size;
    return appended;
  }

  IOStatus synced(uint64_t written, IOStatus outcome) {
    if (outcome.ok()) {
      synced_ = written;
      release(written);
    }
    return outcome;
  }

  void release(uint64_t end) {
    end -= end % kPage;
    uint64_t from = released_.load();
    if (end < from + kStep || !released_.compare_exchange_strong(from, end)) return;
    const uint64_t first = from > kLargestFolio ? from - kLargestFolio : 0;
    target()->InvalidateCache(first, end - first).PermitUncheckedError();
  }

  std::unique_ptr<FSWritableFile> owned_;
  const uint64_t process_ = pk_process_number();
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> synced_{0};
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> released_{0};
};

}  // namespace

bool is_log(const std::string& path) {
  const std::string end = ".log";
  if (path.size() <= end.size() || path.compare(path.size() - end.size(), end.size(), end) != 0) return false;
  const char before = path[path.size() - end.size() - 1];
  return before >= '0' && before <= '9';
}

std::unique_ptr<FSWritableFile> release_behind(std::unique_ptr<FSWritableFile>&& target) {
  return std::make_unique<LogWriter>(std::move(target));
}

}  // namespace pagekeeper_rocksdb
