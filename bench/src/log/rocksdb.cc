// The few calls of RocksDB that a comparison of logs needs, for C: puts that are synced through its write-ahead log. No
// exception leaves these functions.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <rocksdb/db.h>
#include <rocksdb/options.h>

namespace {

// What went wrong, cut to the room there is.
void tell(const std::string &text, char *error, size_t len) {
  if (len > 0) std::snprintf(error, len, "%s", text.c_str());
}

}  // namespace

extern "C" {

struct bench_wal {
  std::unique_ptr<rocksdb::DB> db;
};

bench_wal *bench_wal_open(const char *dir, size_t memtable, char *error, size_t len) {
  try {
    rocksdb::Options options;
    options.create_if_missing = true;
    // The log alone is to be measured: no memtable is flushed, nothing is compacted.
    options.write_buffer_size = memtable;
    options.disable_auto_compactions = true;
    rocksdb::DB *db = nullptr;
    const auto status = rocksdb::DB::Open(options, dir, &db);
    if (status.ok()) return new bench_wal{std::unique_ptr<rocksdb::DB>(db)};
    tell(status.ToString(), error, len);
  } catch (const std::exception &exception) {
    tell(exception.what(), error, len);
  } catch (...) {
    tell("an exception", error, len);
  }
  return nullptr;
}

void bench_wal_close(bench_wal *wal) { delete wal; }

bool bench_wal_put(bench_wal *wal, uint64_t key, const char *bytes, size_t len, bool sync, char *error,
                   size_t error_len) {
  try {
    rocksdb::WriteOptions options;
    options.sync = sync;
    const rocksdb::Slice name(reinterpret_cast<const char *>(&key), sizeof key);
    const auto status = wal->db->Put(options, name, rocksdb::Slice(bytes, len));
    if (status.ok()) return true;
    tell(status.ToString(), error, error_len);
  } catch (const std::exception &exception) {
    tell(exception.what(), error, error_len);
  } catch (...) {
    tell("an exception", error, error_len);
  }
  return false;
}

}
