// The few calls of RocksDB that comparisons of commits and logs need, for C: reads of a value, and batches of values that are
// synced through its write-ahead log. No exception leaves these functions.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/version.h>
#include <rocksdb/write_batch.h>

namespace {

// What went wrong, cut to the room there is.
void tell(const std::string &text, char *error, size_t len) {
  if (len > 0) std::snprintf(error, len, "%s", text.c_str());
}

// Runs `work`, which returns a status; false, and what went wrong, unless it is fine.
template <typename Work>
bool done(char *error, size_t len, Work work) {
  try {
    const auto status = work();
    if (status.ok()) return true;
    tell(status.ToString(), error, len);
  } catch (const std::exception &exception) {
    tell(exception.what(), error, len);
  } catch (...) {
    tell("an exception", error, len);
  }
  return false;
}

// A number whose bytes sort as it does.
struct Key {
  unsigned char bytes[8];
  explicit Key(uint64_t number) {
    for (int at = 7; at >= 0; --at, number >>= 8) bytes[at] = static_cast<unsigned char>(number);
  }
  rocksdb::Slice slice() const { return rocksdb::Slice(reinterpret_cast<const char *>(bytes), sizeof bytes); }
};

}  // namespace

extern "C" {

struct bench_pages {
  std::unique_ptr<rocksdb::DB> db;
};

// With a memtable of `memtable` bytes nothing is compacted; 0 leaves both as they are by default.
bench_pages *bench_pages_open(const char *dir, size_t memory, size_t memtable, char *error, size_t len) {
  bench_pages *opened = nullptr;
  done(error, len, [&] {
    rocksdb::Options options;
    options.create_if_missing = true;
    if (memtable > 0) {
      options.write_buffer_size = memtable;
      options.disable_auto_compactions = true;
    }
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(memory);
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB *db = nullptr;
    const auto status = rocksdb::DB::Open(options, dir, &db);
    if (status.ok()) opened = new bench_pages{std::unique_ptr<rocksdb::DB>(db)};
    return status;
  });
  return opened;
}

void bench_pages_close(bench_pages *pages) { delete pages; }

// The value of a page, which has `size` bytes.
bool bench_pages_get(bench_pages *pages, uint64_t page, char *value, size_t size, char *error, size_t len) {
  return done(error, len, [&] {
    rocksdb::PinnableSlice found;
    const auto status =
        pages->db->Get(rocksdb::ReadOptions(), pages->db->DefaultColumnFamily(), Key(page).slice(), &found);
    if (!status.ok()) return status;
    if (found.size() != size) return rocksdb::Status::Corruption("a value of another size");
    std::memcpy(value, found.data(), size);
    return status;
  });
}

// Values of `size` bytes, one behind the other, as one batch.
bool bench_pages_put(bench_pages *pages, const uint64_t *numbers, size_t count, const char *values, size_t size,
                     bool sync, char *error, size_t len) {
  return done(error, len, [&] {
    rocksdb::WriteBatch batch;
    for (size_t at = 0; at < count; ++at) {
      const auto status = batch.Put(Key(numbers[at]).slice(), rocksdb::Slice(values + at * size, size));
      if (!status.ok()) return status;
    }
    rocksdb::WriteOptions options;
    options.sync = sync;
    return pages->db->Write(options, &batch);
  });
}

// Writes what is in memory to tables.
bool bench_pages_flush(bench_pages *pages, char *error, size_t len) {
  return done(error, len, [&] { return pages->db->Flush(rocksdb::FlushOptions()); });
}

// Whether nothing is flushed or compacted, now or soon.
bool bench_pages_idle(bench_pages *pages) {
  for (const char *name : {"rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes",
                           "rocksdb.compaction-pending", "rocksdb.num-running-compactions"}) {
    uint64_t count = 0;
    if (pages->db->GetIntProperty(name, &count) && count > 0) return false;
  }
  return true;
}

uint32_t bench_rocksdb_version() { return ROCKSDB_MAJOR * 10000 + ROCKSDB_MINOR * 100 + ROCKSDB_PATCH; }
}
