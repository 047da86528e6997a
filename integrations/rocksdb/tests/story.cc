// A RocksDB over pagekeeper's file system, compared with a model in memory.
//
// - `story URI DIRECTORY SEED` performs random operations of databases; it ends with "right".
// - `story URI DIRECTORY write` commits with syncs until it is killed, and prints each acknowledged number.
// - `story URI DIRECTORY check LAST` checks that all numbers up to LAST exist.
// - `story URI DIRECTORY faults` reads while its disk fails, and after it works again.
// - `story URI DIRECTORY log RECYCLED` writes a log of 24 MiB.
// - `story URI DIRECTORY fork WAY` opens a log, a table for writing and one for reading, forks children that
//   use them, continues to write, and is killed.
//
// `faults` and `log` print "ready" and wait for a line when it is their caller's turn.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/backup_engine.h>
#include <rocksdb/utilities/checkpoint.h>

namespace {

using rocksdb::Status;

void check(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

struct World {
  std::string directory;
  std::unique_ptr<rocksdb::Env> env;
  rocksdb::Options options;
  std::unique_ptr<rocksdb::DB> db;
  std::map<std::string, std::string> model;
  std::mt19937_64 random;

  World(const std::string& uri, const std::string& directory, uint64_t seed) : directory(directory), random(seed) {
    std::shared_ptr<rocksdb::FileSystem> files;
    check(rocksdb::FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &files), "the file system");
    env = rocksdb::NewCompositeEnv(files);
    options.env = env.get();
    options.create_if_missing = true;
    options.write_buffer_size = 256 << 10;
    options.target_file_size_base = 256 << 10;
    options.level0_file_num_compaction_trigger = 2;
    options.max_bytes_for_level_base = 1 << 20;
    options.compression = rocksdb::kNoCompression;
    options.recycle_log_file_num = 2;
    options.paranoid_checks = true;
    options.enable_blob_files = seed % 2 == 1;
    options.min_blob_size = 300;
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(64 << 10);
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  }

  void open(const std::string& name = "db") {
    rocksdb::DB* opened = nullptr;
    check(rocksdb::DB::Open(options, directory + "/" + name, &opened), "open");
    db.reset(opened);
  }

  uint64_t below(uint64_t end) { return random() % end; }

  std::string key() {
    char text[16];
    std::snprintf(text, sizeof text, "key%05llu", static_cast<unsigned long long>(below(20000)));
    return text;
  }

  std::string value() { return std::string(below(800), static_cast<char>('a' + below(26))) + std::to_string(random()); }

  void compare(rocksdb::DB* with) {
    rocksdb::ReadOptions read;
    read.verify_checksums = true;
    read.async_io = below(2) == 0;
    read.readahead_size = below(2) == 0 ? 0 : 1 << 20;
    std::unique_ptr<rocksdb::Iterator> found(with->NewIterator(read));
    auto wanted = model.begin();
    for (found->SeekToFirst(); found->Valid(); found->Next(), ++wanted) {
      require(wanted != model.end(), "more than was put");
      require(found->key() == wanted->first && found->value() == wanted->second, "another value than was put");
    }
    check(found->status(), "iterate");
    require(wanted == model.end(), "less than was put");
  }

  void get_many() {
    std::vector<std::string> keys(1 + below(64));
    for (auto& one : keys) one = key();
    std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
    std::vector<rocksdb::PinnableSlice> values(keys.size());
    std::vector<Status> statuses(keys.size());
    rocksdb::ReadOptions read;
    read.async_io = below(2) == 0;
    db->MultiGet(read, db->DefaultColumnFamily(), slices.size(), slices.data(), values.data(), statuses.data());
    for (size_t nth = 0; nth < keys.size(); nth++) {
      const auto wanted = model.find(keys[nth]);
      if (wanted == model.end()) {
        require(statuses[nth].IsNotFound(), "a key that was not put");
      } else {
        check(statuses[nth], "get many");
        require(values[nth] == wanted->second, "many: another value than was put");
      }
    }
  }

  // Ingests a file that was created elsewhere. It gets a name that an earlier file may have had.
  void ingest() {
    const std::string path = directory + "/ingested.sst";
    std::map<std::string, std::string> more;
    for (int nth = 0; nth < 200; nth++) more[key()] = value();
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
    check(writer.Open(path), "open a table");
    for (const auto& [key, value] : more) check(writer.Put(key, value), "write a table");
    check(writer.Finish(), "finish a table");
    rocksdb::IngestExternalFileOptions how;
    how.move_files = below(2) == 0;
    how.write_global_seqno = below(2) == 0;
    check(db->IngestExternalFile({path}, how), "ingest");
    env->DeleteFile(path);
    for (auto& [key, value] : more) model[key] = value;
  }

  void checkpoint() {
    rocksdb::Checkpoint* made = nullptr;
    check(rocksdb::Checkpoint::Create(db.get(), &made), "a checkpoint");
    std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    const std::string path = directory + "/checkpoint";
    check(checkpoint->CreateCheckpoint(path), "make a checkpoint");
    rocksdb::DB* opened = nullptr;
    check(rocksdb::DB::Open(options, path, &opened), "open the checkpoint");
    std::unique_ptr<rocksdb::DB> copy(opened);
    compare(copy.get());
    copy.reset();
    check(rocksdb::DestroyDB(path, options), "remove the checkpoint");
  }

  void backup() {
    rocksdb::BackupEngine* made = nullptr;
    rocksdb::BackupEngineOptions how(directory + "/backup");
    check(rocksdb::BackupEngine::Open(env.get(), how, &made), "a backup");
    std::unique_ptr<rocksdb::BackupEngine> backup(made);
    check(backup->CreateNewBackup(db.get(), true), "make a backup");
    std::vector<rocksdb::BackupInfo> made_so_far;
    backup->GetBackupInfo(&made_so_far);
    check(backup->VerifyBackup(made_so_far.back().backup_id, true), "verify the backup");
    check(backup->RestoreDBFromLatestBackup(directory + "/restored", directory + "/restored"), "restore");
    rocksdb::DB* opened = nullptr;
    check(rocksdb::DB::Open(options, directory + "/restored", &opened), "open what was restored");
    std::unique_ptr<rocksdb::DB> copy(opened);
    compare(copy.get());
    copy.reset();
    check(rocksdb::DestroyDB(directory + "/restored", options), "remove what was restored");
    check(backup->PurgeOldBackups(1), "purge backups");
  }

  void step() {
    rocksdb::WriteOptions write;
    switch (below(1000)) {
      case 0: return checkpoint();
      case 1: return backup();
      case 2:
      case 3: return ingest();
      case 4: return check(db->Flush(rocksdb::FlushOptions()), "flush");
      case 5: return check(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compact");
      case 6: return compare(db.get());
      case 7: return check(db->VerifyChecksum(), "verify");
      case 8:
        // Opens the database again, with the same files.
        db.reset();
        return open();
      default: break;
    }
    const std::string at = key();
    switch (below(8)) {
      case 0: {
        check(db->Delete(write, at), "delete");
        model.erase(at);
        return;
      }
      case 1: return get_many();
      case 2: {
        std::string found;
        const Status status = db->Get(rocksdb::ReadOptions(), at, &found);
        const auto wanted = model.find(at);
        require(wanted == model.end() ? status.IsNotFound() : status.ok() && found == wanted->second, "get: another value");
        return;
      }
      default: {
        const std::string put = value();
        check(db->Put(write, at, put), "put");
        model[at] = put;
      }
    }
  }
};

void ready() {
  std::printf("ready\n");
  std::fflush(stdout);
  char line[16];
  require(std::fgets(line, sizeof line, stdin) != nullptr, "the caller went away");
}

// Whether a read failed as it should while the disk fails: with an I/O error that names a table and has the
// system's message.
bool has_failed(const Status& status) {
  if (status.ok()) return false;
  const std::string words = status.ToString();
  require(status.IsIOError() && words.find("Input/output error") != std::string::npos && words.find(".sst") != std::string::npos, words.c_str());
  return true;
}

// A logger without output: RocksDB's own is flushed every five seconds, and a write to a frozen file system
// would wait forever.
struct Silent : rocksdb::Logger {
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Tables of 16 MiB in total, of which a cache of 2 MiB holds a part.
void faults(World& world) {
  constexpr uint64_t keys = 8000;
  auto key = [](uint64_t number) { return "number" + std::to_string(number); };
  auto value = [](uint64_t number) { return std::string(2000, 'x') + std::to_string(number); };
  for (uint64_t number = 0; number < keys; number++) check(world.db->Put(rocksdb::WriteOptions(), key(number), value(number)), "put");
  check(world.db->Flush(rocksdb::FlushOptions()), "flush");
  check(world.db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compact");
  ready();
  uint64_t failed = 0;
  for (uint64_t number = 0; number < keys; number++) {
    std::string found;
    if (has_failed(world.db->Get(rocksdb::ReadOptions(), key(number), &found))) failed++;
    else require(found == value(number), "another value than was put");
  }
  require(failed > 0, "no get failed");
  uint64_t failed_of_many = 0;
  for (uint64_t first = 0; first < keys; first += 50) {
    std::vector<std::string> names;
    for (uint64_t number = first; number < first + 50; number++) names.push_back(key(number));
    std::vector<std::string> found;
    const std::vector<rocksdb::Slice> slices(names.begin(), names.end());
    const std::vector<Status> statuses = world.db->MultiGet(rocksdb::ReadOptions(), slices, &found);
    for (uint64_t nth = 0; nth < statuses.size(); nth++) {
      if (has_failed(statuses[nth])) failed_of_many++;
      else require(found[nth] == value(first + nth), "many: another value than was put");
    }
  }
  require(failed_of_many > 0, "no get of many failed");
  for (const bool async : {false, true}) {
    rocksdb::ReadOptions read;
    read.async_io = async;
    read.readahead_size = 1 << 20;
    std::unique_ptr<rocksdb::Iterator> all(world.db->NewIterator(read));
    for (all->SeekToFirst(); all->Valid(); all->Next())
      require(all->value() == value(std::stoull(all->key().ToString().substr(6))), "iterate: another value than was put");
    require(has_failed(all->status()), "a scan of a disk that fails ended well");
  }
  require(!world.db->VerifyChecksum().ok(), "all checksums of a disk that fails were right");
  ready();
  for (uint64_t number = 0; number < keys; number++) {
    std::string found;
    check(world.db->Get(rocksdb::ReadOptions(), key(number), &found), "get from a disk that works again");
    require(found == value(number), "another value than was put");
  }
  check(world.db->VerifyChecksum(), "verify");
  check(world.db->Put(rocksdb::WriteOptions(), "more", "more"), "put more");
  check(world.db->Flush(rocksdb::FlushOptions()), "flush more");
  check(world.db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compact more");
}

void log(World& world) {
  rocksdb::WriteOptions sync;
  sync.sync = true;
  for (int nth = 0; nth < 24 * 8; nth++) {
    check(world.db->Put(sync, "number" + std::to_string(nth), std::string(128 << 10, 'x')), "put");
    // A small record makes the next one begin inside a page.
    check(world.db->Put(rocksdb::WriteOptions(), "small", "x"), "put a small one");
  }
  ready();
}

// Open files of each kind that the file system implements itself.
struct Files {
  std::shared_ptr<rocksdb::FileSystem> system;
  std::string directory;
  std::unique_ptr<rocksdb::FSWritableFile> log, table;
  std::unique_ptr<rocksdb::FSRandomAccessFile> reader;
  const rocksdb::FileOptions options;
  const rocksdb::IOOptions io;

  Files(const std::string& uri, const std::string& directory) : directory(directory) {
    check(rocksdb::FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &system), "the file system");
    check(system->NewWritableFile(directory + "/000003.sst", options, &table, nullptr), "a table");
    check(table->Append(std::string(1 << 20, 't'), io, nullptr), "append to a table");
    check(table->Close(io, nullptr), "close a table");
    check(system->NewRandomAccessFile(directory + "/000003.sst", options, &reader, nullptr), "open a table");
    check(system->NewWritableFile(directory + "/000002.sst", options, &table, nullptr), "a table");
    check(system->NewWritableFile(directory + "/000001.log", options, &log, nullptr), "a log");
  }

  void acknowledge() {
    check(log->Append("a record", io, nullptr), "append to a log");
    check(log->Sync(io, nullptr), "sync a log");
    check(table->Append("a record", io, nullptr), "append to a table");
  }

  void read() {
    std::string scratch(5000, ' ');
    rocksdb::Slice found;
    check(reader->Read(std::rand() % 1000000, scratch.size(), io, &found, &scratch[0], nullptr), "read a table");
  }

  // Whether everything fails that a forked child does with them.
  bool is_refused() {
    std::string scratch(5000, ' ');
    rocksdb::Slice found;
    std::unique_ptr<rocksdb::FSRandomAccessFile> other;
    rocksdb::FSReadRequest many;
    many.offset = 0, many.len = 100, many.scratch = &scratch[0];
    reader->MultiRead(&many, 1, io, nullptr).PermitUncheckedError();
    bool is_right = true;
    auto must_fail = [&is_right](const Status& status, const char* what) {
      if (status.ToString().find("before this process was forked") != std::string::npos) return;
      dprintf(2, "%s in a child: %s\n", what, status.ToString().c_str());
      is_right = false;
    };
    must_fail(log->Append("b", io, nullptr), "append to a log");
    must_fail(log->Flush(io, nullptr), "flush a log");
    must_fail(log->Sync(io, nullptr), "sync a log");
    must_fail(log->Close(io, nullptr), "close a log");
    must_fail(reader->Read(0, scratch.size(), io, &found, &scratch[0], nullptr), "read a table");
    must_fail(many.status, "read much of a table");
    must_fail(reader->Prefetch(0, 100, io, nullptr), "prefetch");
    must_fail(table->Append("b", io, nullptr), "append to a table");
    must_fail(table->Close(io, nullptr), "close a table");
    log.reset(), table.reset(), reader.reset();
    return is_right;
  }
};

// Whether a child succeeds, or a child of that child.
bool does_well(Files& files, int depth) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(depth > 1 ? !does_well(files, depth - 1) : !files.is_refused());
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

bool starts_a_program() {
  const pid_t child = vfork();
  if (child == 0) {
    execl("/bin/true", "true", static_cast<char*>(nullptr));
    _exit(1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

void forks(const std::string& uri, const std::string& directory, const std::string& way) {
  Files files(uri, directory);
  for (int nth = 0; nth < 4; nth++) files.acknowledge();
  for (int nth = 0; way == "threads" && nth < 2; nth++)
    std::thread([&files] {
      for (;;) files.read();
    }).detach();
  for (int nth = 0; nth < (way == "threads" ? 20 : 1); nth++)
    require(way == "exec" ? starts_a_program() : does_well(files, way == "twice" ? 2 : 1), "a child did not end well");
  for (int nth = 0; nth < 4; nth++) files.acknowledge();
  check(files.table->Close(files.io, nullptr), "close a table");
  kill(getpid(), SIGKILL);
}

std::string of_number(uint64_t number) { return std::string(number % 3000, 'x') + std::to_string(number); }

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string mode = argv[3];
  if (mode == "fork") forks(argv[1], argv[2], argv[4]);
  if (mode == "write") {
    World world(argv[1], argv[2], 1);
    world.open();
    rocksdb::WriteOptions sync;
    sync.sync = true;
    std::string last;
    uint64_t number = world.db->Get(rocksdb::ReadOptions(), "last", &last).ok() ? std::stoull(last) + 1 : 1;
    for (;; number++) {
      rocksdb::WriteBatch batch;
      batch.Put("number" + std::to_string(number % 5000), of_number(number));
      batch.Put("last", std::to_string(number));
      check(world.db->Write(sync, &batch), "write");
      std::printf("%llu\n", static_cast<unsigned long long>(number));
      std::fflush(stdout);
    }
  }
  if (mode == "check") {
    World world(argv[1], argv[2], 1);
    world.open();
    std::string last;
    check(world.db->Get(rocksdb::ReadOptions(), "last", &last), "the last");
    const uint64_t end = std::stoull(last), acknowledged = std::stoull(argv[4]);
    require(end >= acknowledged, "acknowledged, and lost");
    for (uint64_t number = end > 5000 ? end - 4999 : 1; number <= end; number++) {
      std::string found;
      check(world.db->Get(rocksdb::ReadOptions(), "number" + std::to_string(number % 5000), &found), "a number");
      require(found == of_number(number), "another value than was written");
    }
    check(world.db->VerifyChecksum(), "verify");
    std::printf("right\n");
    return 0;
  }
  if (mode == "faults" || mode == "log") {
    World world(argv[1], argv[2], 2);
    if (mode == "faults") {
      world.options.info_log = std::make_shared<Silent>();
      world.options.stats_dump_period_sec = 0;
      world.options.stats_persist_period_sec = 0;
    } else {
      world.options.write_buffer_size = 64 << 20;
      world.options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
      world.options.recycle_log_file_num = std::stoull(argv[4]);
    }
    world.open();
    mode == "log" ? log(world) : faults(world);
    std::printf("right\n");
    return 0;
  }
  World world(argv[1], argv[2], std::stoull(mode));
  world.open();
  const int steps = argc > 4 ? std::atoi(argv[4]) : 20000;
  for (int nth = 0; nth < steps; nth++) world.step();
  world.compare(world.db.get());
  world.db.reset();
  world.open();
  world.compare(world.db.get());
  std::printf("right\n");
  return 0;
}
