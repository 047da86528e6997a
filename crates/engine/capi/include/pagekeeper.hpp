// pagekeeper.hpp: a header-only C++17 interface over pagekeeper.h. Handles close themselves, and errors throw
// pagekeeper::Error. The functions are those of pagekeeper.h, whose documentation applies.
#ifndef PAGEKEEPER_HPP
#define PAGEKEEPER_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "pagekeeper.h"

namespace pagekeeper {

// An error, with the status and errno of the call.
class Error : public std::runtime_error {
 public:
  Error(pk_status status, const char* message, int number)
      : std::runtime_error(message), status_(status), number_(number) {}
  pk_status status() const noexcept { return status_; }
  int number() const noexcept { return number_; }

 private:
  pk_status status_;
  int number_;
};

// Throws the error of a call of pagekeeper.h, unless its status is PK_OK.
inline void check(pk_status status) {
  if (status != PK_OK) throw Error(status, pk_error_message(), pk_error_number());
}

namespace detail {
template <typename T, void (*close)(T*)>
struct Closer {
  void operator()(T* handle) const noexcept { close(handle); }
};
template <typename T, pk_status (*close)(T*)>
struct CheckedCloser {
  void operator()(T* handle) const noexcept { close(handle); }
};
template <typename T, void (*close)(T*)>
using Handle = std::unique_ptr<T, Closer<T, close>>;
template <typename T, pk_status (*close)(T*)>
using CheckedHandle = std::unique_ptr<T, CheckedCloser<T, close>>;
}  // namespace detail

// A page in place, pinned while this object lives.
class Page {
 public:
  explicit Page(pk_page* page) : page_(page) {}
  const void* data() const noexcept { return pk_page_data(page_.get()); }
  size_t size() const noexcept { return pk_page_size(page_.get()); }

 private:
  detail::Handle<pk_page, pk_page_release> page_;
};

class File {
 public:
  explicit File(pk_file* file) : file_(file) {}
  uint64_t size() const noexcept { return pk_file_size(file_.get()); }
  uint64_t id() const noexcept { return pk_file_id(file_.get()); }
  size_t read(uint64_t offset, void* buffer, size_t size) const {
    size_t read = 0;
    check(pk_file_read(file_.get(), offset, buffer, size, &read));
    return read;
  }
  void prefetch(uint64_t offset, uint64_t size) const { check(pk_file_prefetch(file_.get(), offset, size)); }
  Page page(uint64_t number) const {
    pk_page* page = nullptr;
    check(pk_page_get(file_.get(), number, &page));
    return Page(page);
  }
  // The next three are for files of Cache::open_owned().
  void write_pages(uint64_t first, const void* bytes, size_t size) const { check(pk_file_write_pages(file_.get(), first, bytes, size, 0)); }
  void discard(uint64_t first, uint64_t count) const { check(pk_file_discard(file_.get(), first, count)); }
  void sync() const { check(pk_file_sync(file_.get())); }
  pk_file* get() const noexcept { return file_.get(); }

 private:
  detail::Handle<pk_file, pk_file_close> file_;
};

class Cache {
 public:
  explicit Cache(pk_cache_options options = PK_CACHE_OPTIONS_INIT) {
    pk_cache* cache = nullptr;
    check(pk_cache_open(&options, &cache));
    cache_.reset(cache);
  }
  explicit Cache(uint64_t memory) : Cache(with_memory(memory)) {}
  File open(const std::string& path) const {
    pk_file* file = nullptr;
    check(pk_file_open(cache_.get(), path.c_str(), &file));
    return File(file);
  }
  // Opens a file that the caller writes; creates it if it is missing.
  File open_owned(const std::string& path, uint64_t max_pages) const {
    pk_file* file = nullptr;
    check(pk_file_open_owned(cache_.get(), path.c_str(), 0, max_pages, &file));
    return File(file);
  }
  void set_memory(uint64_t bytes) const { check(pk_cache_set_memory(cache_.get(), bytes)); }
  pk_cache_stats stats() const {
    pk_cache_stats stats = PK_CACHE_STATS_INIT;
    check(pk_cache_get_stats(cache_.get(), &stats));
    return stats;
  }
  pk_cache* get() const noexcept { return cache_.get(); }

 private:
  static pk_cache_options with_memory(uint64_t memory) {
    pk_cache_options options = PK_CACHE_OPTIONS_INIT;
    options.memory = memory;
    return options;
  }
  detail::Handle<pk_cache, pk_cache_close> cache_;
};

// A file that is written once. It is abandoned unless it is finished.
class Bulk {
 public:
  explicit Bulk(const std::string& path, pk_bulk_options options = PK_BULK_OPTIONS_INIT) {
    pk_bulk* bulk = nullptr;
    check(pk_bulk_create(path.c_str(), &options, &bulk));
    bulk_.reset(bulk);
  }
  void write(const void* bytes, size_t size) { check(pk_bulk_write(bulk_.get(), bytes, size)); }
  pk_bulk_report finish() {
    pk_bulk_report report = PK_BULK_REPORT_INIT;
    check(pk_bulk_finish(bulk_.release(), &report));
    return report;
  }

 private:
  detail::Handle<pk_bulk, pk_bulk_abandon> bulk_;
};

class Redo {
 public:
  static Redo create(const std::string& directory, pk_redo_options options = PK_REDO_OPTIONS_INIT) {
    pk_redo* redo = nullptr;
    check(pk_redo_create(directory.c_str(), &options, &redo));
    return Redo(redo);
  }
  static Redo open(const std::string& directory, pk_redo_options options = PK_REDO_OPTIONS_INIT) {
    pk_redo* redo = nullptr;
    check(pk_redo_open(directory.c_str(), &options, &redo));
    return Redo(redo);
  }
  uint64_t append(const void* bytes, size_t size) {
    uint64_t lsn = 0;
    check(pk_redo_append(redo_.get(), bytes, size, &lsn));
    return lsn;
  }
  void wait(uint64_t lsn) { check(pk_redo_wait(redo_.get(), lsn)); }
  void checkpoint(uint64_t lsn) { check(pk_redo_checkpoint(redo_.get(), lsn)); }
  uint64_t checkpoint_lsn() const noexcept { return pk_redo_checkpoint_lsn(redo_.get()); }
  // Calls visit(bytes, size, next) with each record from lsn on.
  template <typename Visit>
  void read(uint64_t lsn, Visit visit) {
    pk_redo_reader* opened = nullptr;
    check(pk_redo_read(redo_.get(), lsn, &opened));
    detail::Handle<pk_redo_reader, pk_redo_reader_close> reader(opened);
    for (;;) {
      const void* bytes = nullptr;
      size_t size = 0;
      uint64_t next = 0;
      pk_status status = pk_redo_next(reader.get(), &bytes, &size, &next);
      if (status == PK_END) return;
      check(status);
      visit(bytes, size, next);
    }
  }
  void close() { check(pk_redo_close(redo_.release())); }

 private:
  explicit Redo(pk_redo* redo) : redo_(redo) {}
  detail::CheckedHandle<pk_redo, pk_redo_close> redo_;
};

// A change of a store. It has no effect unless it is committed.
class WriteTxn {
 public:
  explicit WriteTxn(pk_write_txn* txn) : txn_(txn) {}
  uint64_t allocate() {
    uint64_t page = 0;
    check(pk_write_allocate(txn_.get(), &page));
    return page;
  }
  void write(uint64_t page, size_t offset, const void* bytes, size_t size) {
    check(pk_write_change(txn_.get(), page, offset, bytes, size));
  }
  void free(uint64_t page) { check(pk_write_free(txn_.get(), page)); }
  uint64_t create_map() {
    uint64_t root = 0;
    check(pk_map_create(txn_.get(), &root));
    return root;
  }
  // Opens the map of a name, and creates it first if there is none.
  uint64_t open_map(const std::string& name) {
    uint64_t root = 0;
    check(pk_write_map_open(txn_.get(), name.data(), name.size(), &root));
    return root;
  }
  void put(uint64_t root, const std::string& key, const std::string& value) {
    check(pk_map_put(txn_.get(), root, key.data(), key.size(), value.data(), value.size()));
  }
  // Returns whether the key existed.
  bool remove(uint64_t root, const std::string& key) {
    const auto status = pk_map_delete(txn_.get(), root, key.data(), key.size());
    if (status != PK_NOT_FOUND) check(status);
    return status == PK_OK;
  }
  void set_root(uint64_t page) { check(pk_write_set_root(txn_.get(), page)); }
  uint64_t commit(pk_durability durability = PK_DURABLE) {
    uint64_t seq = 0;
    check(pk_write_commit(txn_.release(), durability, &seq));
    return seq;
  }

 private:
  detail::Handle<pk_write_txn, pk_write_abort> txn_;
};

class Snapshot {
 public:
  explicit Snapshot(pk_read_txn* txn) : txn_(txn) {}
  uint64_t root() const {
    uint64_t page = PK_NO_PAGE;
    check(pk_read_get_root(txn_.get(), &page));
    return page;
  }
  uint64_t seq() const noexcept { return pk_read_seq(txn_.get()); }
  size_t read(uint64_t page, size_t offset, void* buffer, size_t size) const {
    size_t read = 0;
    check(pk_read_copy(txn_.get(), page, offset, buffer, size, &read));
    return read;
  }
  // Gets the value of a key of a map. Returns false if there is none.
  bool get(uint64_t root, const std::string& key, std::string& value) const {
    size_t size = 0;
    value.resize(value.capacity());
    auto status = pk_map_get(txn_.get(), root, key.data(), key.size(), &value[0], value.size(), &size);
    const bool cut = status == PK_OK && size > value.size();
    value.resize(status == PK_OK ? size : 0);
    if (cut) status = pk_map_get(txn_.get(), root, key.data(), key.size(), &value[0], size, nullptr);
    if (status != PK_NOT_FOUND) check(status);
    return status == PK_OK;
  }
  // Calls visit(key, value) for the entries of a map from a key on, until it returns false.
  template <typename Visit>
  void scan(uint64_t root, const std::string& from, Visit visit) const {
    pk_cursor* opened = nullptr;
    check(pk_cursor_open(txn_.get(), root, from.data(), from.size(), 0, &opened));
    const detail::Handle<pk_cursor, pk_cursor_close> cursor(opened);
    const void *key, *value;
    size_t key_size, value_size;
    for (;;) {
      const auto status = pk_cursor_next(cursor.get(), &key, &key_size, &value, &value_size);
      if (status == PK_END) return;
      check(status);
      if (!visit(std::string(static_cast<const char*>(key), key_size), std::string(static_cast<const char*>(value), value_size))) return;
    }
  }

 private:
  detail::Handle<pk_read_txn, pk_read_end> txn_;
};

class Store {
 public:
  explicit Store(const std::string& directory, pk_store_options options = PK_STORE_OPTIONS_INIT) {
    pk_store* store = nullptr;
    check(pk_store_open(directory.c_str(), &options, &store));
    store_.reset(store);
  }
  // timeout_ms: -1 without a limit; 0 does not wait. Throws an Error of PK_TIMED_OUT after it.
  WriteTxn begin_write(int timeout_ms = -1) {
    pk_write_txn* txn = nullptr;
    check(pk_store_begin_write_timeout(store_.get(), timeout_ms, &txn));
    return WriteTxn(txn);
  }
  Snapshot begin_read() const {
    pk_read_txn* txn = nullptr;
    check(pk_store_begin_read(store_.get(), &txn));
    return Snapshot(txn);
  }
  uint64_t backup(const std::string& to) const {
    uint64_t seq = 0;
    check(pk_store_backup(store_.get(), to.c_str(), &seq));
    return seq;
  }
  pk_store* get() const noexcept { return store_.get(); }
  void close() { check(pk_store_close(store_.release())); }

 private:
  detail::CheckedHandle<pk_store, pk_store_close> store_;
};

}  // namespace pagekeeper

#endif
