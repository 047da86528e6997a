#include "table_writer.h"

#include <utility>

#include "status.h"

namespace pagekeeper_rocksdb {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Minimum bytes of a direct write of bulk output.
constexpr uint64_t kDirectBlock = 4096;

// Writes a table from start to end. It is durable with its sync or its close, whichever comes first. A table
// has no bytes after its sync. If some come nevertheless, that is an error, not a file that is less durable
// than it claims.
class TableWriter : public rocksdb::FSWritableFile {
 public:
  TableWriter(pk_bulk* bulk, std::string path, const rocksdb::FileOptions& options, const std::shared_ptr<InfoLogs>& logs)
      : rocksdb::FSWritableFile(options), bulk_(bulk), path_(std::move(path)), logs_(logs) {}
  ~TableWriter() override { pk_bulk_abandon(bulk_); }
  TableWriter(const TableWriter&) = delete;
  TableWriter& operator=(const TableWriter&) = delete;

  using rocksdb::FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    // File systems in front of this one append their buffered data at each sync, and it may be empty.
    if (data.empty()) return failed_;
    if (bulk_ == nullptr) return after_sync();
    const pk_status status = pk_bulk_write(bulk_, data.data(), data.size());
    if (status != PK_OK) return to_status(status, path_);
    written_ += data.size();
    return IOStatus::OK();
  }

  using rocksdb::FSWritableFile::PositionedAppend;
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options, IODebugContext* dbg) override {
    if (offset != written_) return IOStatus::NotSupported(path_, "a table is written from its start on");
    return Append(data, options, dbg);
  }

  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    if (size == written_) return IOStatus::OK();
    return IOStatus::NotSupported(path_, "a table is not cut");
  }

  // Nobody reads an incomplete table.
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return failed_; }
  // Writeback has started already.
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override { return failed_; }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return finish(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return finish(); }

  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return written_; }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }

 private:
  IOStatus finish() {
    if (bulk_ == nullptr) return failed_;
    pk_bulk_report report = PK_BULK_REPORT_INIT;
    failed_ = to_status(pk_bulk_finish(std::exchange(bulk_, nullptr), &report), path_);
    if (failed_.ok() && report.mode != PK_BULK_DIRECT) logs_->say_cached(path_, "written", why_not_direct(path_, kDirectBlock));
    return failed_;
  }

  IOStatus after_sync() const {
    return failed_.ok() ? IOStatus::NotSupported(path_, "a table that was synced takes no more") : failed_;
  }

  pk_bulk* bulk_;
  std::string path_;
  std::shared_ptr<InfoLogs> logs_;
  uint64_t written_ = 0;
  // The result of finishing the file.
  IOStatus failed_ = IOStatus::OK();
};

}  // namespace

pk_status create_table(const std::string& path, const rocksdb::FileOptions& options, const std::shared_ptr<InfoLogs>& logs,
                       std::unique_ptr<rocksdb::FSWritableFile>* file) {
  pk_bulk* bulk = nullptr;
  const pk_status status = pk_bulk_create(path.c_str(), nullptr, &bulk);
  if (status == PK_OK) *file = std::make_unique<TableWriter>(bulk, path, options, logs);
  return status;
}

}  // namespace pagekeeper_rocksdb
