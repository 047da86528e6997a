// A RocksDB that is driven by lines, where neither its C interface nor db_bench has what a story needs.
//
// Usage: rocksdb_driver DATABASE ROLE. Prints "done" once the database is open, and after each line of standard input:
//
//   put BYTES    puts this many bytes, unsynced, at RATE
//   log BYTES    has RocksDB's own logger write this many bytes to LOG
//   read 0       flushes, and reads all values through the page cache
//   compact 0    merges all tables into new ones
//
// The roles:
//
//   primary      one file of the write-ahead log has all that is put
//   followed     the same, and a thread asks GetUpdatesSince for what it has not seen yet, as a replication thread of a service does:
//                RocksDB opens the log for that, reads it from its beginning, and closes it
//   secondary    beside a primary, whose log it reads: it asks TryCatchUpWithPrimary until it is killed, and takes no lines
//   direct       small tables, which flushes and compactions write by direct I/O
//
// Ends when standard input does; exits with 1 and a message on an error.

#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include <rocksdb/db.h>
#include <rocksdb/transaction_log.h>

namespace {

// Bytes per second.
constexpr uint64_t RATE = 16 << 20;
constexpr size_t BATCH = 64 << 10;
constexpr std::chrono::milliseconds POLL(200);
// Far more than the guard leaves behind the writer is put meanwhile.
constexpr std::chrono::seconds CATCH_UP(1);
// Bytes of a line of LOG, and of one file of it.
constexpr size_t LINE = 16 << 10;
constexpr size_t LOG_FILE = 16 << 20;

void require(const rocksdb::Status& status) {
  if (!status.ok()) {
    std::cerr << status.ToString() << std::endl;
    std::exit(1);
  }
}

rocksdb::Options options_of(const std::string& role) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.max_log_file_size = LOG_FILE;
  if (role == "direct") {
    options.use_direct_io_for_flush_and_compaction = true;
    options.write_buffer_size = 8 << 20;
    options.disable_auto_compactions = true;
  } else {
    options.write_buffer_size = size_t{1} << 30;
    options.max_total_wal_size = uint64_t{4} << 30;
    options.WAL_ttl_seconds = 3600;
  }
  return options;
}

void done() { std::cout << "done" << std::endl; }

// Follows a primary until it is killed.
[[noreturn]] void catch_up(const std::string& path, const rocksdb::Options& options) {
  rocksdb::DB* database = nullptr;
  require(rocksdb::DB::OpenAsSecondary(options, path, path + ".secondary", &database));
  done();
  while (true) {
    require(database->TryCatchUpWithPrimary());
    std::this_thread::sleep_for(CATCH_UP);
  }
}

// Reads all updates from the sequence number on that is wanted next, and moves it.
void follow(rocksdb::DB* database, rocksdb::SequenceNumber* next) {
  std::unique_ptr<rocksdb::TransactionLogIterator> updates;
  // There may be none yet.
  if (!database->GetUpdatesSince(*next, &updates).ok()) return;
  for (; updates->Valid(); updates->Next()) {
    rocksdb::BatchResult batch = updates->GetBatch();
    *next = batch.sequence + batch.writeBatchPtr->Count();
  }
}

void put(rocksdb::DB* database, uint64_t bytes) {
  static uint64_t key = 0;
  const std::string value(BATCH, 'v');
  const auto began = std::chrono::steady_clock::now();
  for (uint64_t put = 0; put < bytes; put += BATCH) {
    rocksdb::WriteBatch batch;
    require(batch.Put(std::to_string(key++), value));
    require(database->Write(rocksdb::WriteOptions(), &batch));
    std::this_thread::sleep_until(began + std::chrono::microseconds(put * 1000000 / RATE));
  }
}

void log(rocksdb::DB* database, uint64_t bytes) {
  const std::string line(LINE, 'l');
  const auto logger = database->GetDBOptions().info_log;
  for (uint64_t logged = 0; logged < bytes; logged += LINE) rocksdb::Info(logger, "%s", line.c_str());
  logger->Flush();
}

void read(rocksdb::DB* database) {
  require(database->Flush(rocksdb::FlushOptions()));
  std::unique_ptr<rocksdb::Iterator> values(database->NewIterator(rocksdb::ReadOptions()));
  for (values->SeekToFirst(); values->Valid(); values->Next()) {
  }
  require(values->status());
}

void compact(rocksdb::DB* database) {
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  require(database->CompactRange(options, nullptr, nullptr));
}

void obey(rocksdb::DB* database, const std::string& verb, uint64_t bytes) {
  if (verb == "put") put(database, bytes);
  else if (verb == "log") log(database, bytes);
  else if (verb == "read") read(database);
  else if (verb == "compact") compact(database);
  else require(rocksdb::Status::InvalidArgument(verb));
}

}  // namespace

int main(int, char** arguments) {
  const std::string path = arguments[1], role = arguments[2];
  const rocksdb::Options options = options_of(role);
  if (role == "secondary") catch_up(path, options);
  rocksdb::DB* opened = nullptr;
  require(rocksdb::DB::Open(options, path, &opened));
  std::unique_ptr<rocksdb::DB> database(opened);

  std::atomic<bool> ends(false);
  std::thread follower([&] {
    rocksdb::SequenceNumber next = 1;
    while (role == "followed" && !ends) {
      follow(database.get(), &next);
      std::this_thread::sleep_for(POLL);
    }
  });
  done();
  std::string verb;
  for (uint64_t bytes = 0; std::cin >> verb >> bytes;) {
    obey(database.get(), verb, bytes);
    done();
  }
  ends = true;
  follower.join();
}
