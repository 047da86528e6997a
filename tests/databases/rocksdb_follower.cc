// A RocksDB whose write-ahead log is followed in the same process, as a replication thread of a service does it.
//
// Usage: rocksdb_follower DATABASE. Each line on standard input is a number of bytes: they are put, unsynced, at RATE, then
// "put" is printed. A second thread meanwhile asks GetUpdatesSince for what it has not seen yet. RocksDB opens the log for that,
// reads it from its beginning, and closes it. Ends when standard input does; exits with 1 and a message on an error.

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

void require(const rocksdb::Status& status) {
  if (!status.ok()) {
    std::cerr << status.ToString() << std::endl;
    std::exit(1);
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

}  // namespace

int main(int, char** arguments) {
  rocksdb::Options options;
  options.create_if_missing = true;
  // One file of the log has it all.
  options.write_buffer_size = size_t{1} << 30;
  options.max_total_wal_size = uint64_t{4} << 30;
  options.WAL_ttl_seconds = 3600;
  rocksdb::DB* opened = nullptr;
  require(rocksdb::DB::Open(options, arguments[1], &opened));
  std::unique_ptr<rocksdb::DB> database(opened);

  std::atomic<bool> ends(false);
  std::thread follower([&] {
    rocksdb::SequenceNumber next = 1;
    while (!ends) {
      follow(database.get(), &next);
      std::this_thread::sleep_for(POLL);
    }
  });

  const std::string value(BATCH, 'v');
  uint64_t key = 0, bytes = 0;
  while (std::cin >> bytes) {
    const auto began = std::chrono::steady_clock::now();
    for (uint64_t put = 0; put < bytes; put += BATCH) {
      rocksdb::WriteBatch batch;
      require(batch.Put(std::to_string(key++), value));
      require(database->Write(rocksdb::WriteOptions(), &batch));
      std::this_thread::sleep_until(began + std::chrono::microseconds(put * 1000000 / RATE));
    }
    std::cout << "put" << std::endl;
  }
  ends = true;
  follower.join();
}
