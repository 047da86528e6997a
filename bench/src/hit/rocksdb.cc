// The few calls of RocksDB's block caches that the benchmark needs, for C. A read is what a block read of RocksDB does:
// a lookup that pins the entry, a copy, and the release of the handle. No exception leaves these functions.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include <rocksdb/cache.h>
#include <rocksdb/version.h>

namespace {

using rocksdb::Cache;
using rocksdb::Slice;

// The size of RocksDB's own keys of blocks; HyperClockCache takes no other.
struct Key {
  uint64_t high;
  uint64_t low;
  explicit Key(uint64_t number) : high(0x9e3779b97f4a7c15), low(number) {}
  Slice slice() const { return Slice(reinterpret_cast<const char *>(this), sizeof *this); }
};

void delete_page(const Slice &, void *value) { delete[] static_cast<char *>(value); }

}  // namespace

extern "C" {

struct bench_cache {
  std::shared_ptr<Cache> cache;
};

bench_cache *bench_cache_new(bool hyper_clock, size_t capacity, size_t page) {
  try {
    auto cache = hyper_clock ? rocksdb::HyperClockCacheOptions(capacity, page).MakeSharedCache()
                             : rocksdb::NewLRUCache(capacity);
    return cache ? new bench_cache{cache} : nullptr;
  } catch (...) {
    return nullptr;
  }
}

void bench_cache_delete(bench_cache *cache) { delete cache; }

bool bench_cache_insert(bench_cache *cache, uint64_t number, const char *bytes, size_t len) {
  try {
    std::unique_ptr<char[]> copy(new char[len]);
    std::memcpy(copy.get(), bytes, len);
    const Key key(number);
    // Without a handle the cache owns the value, also where it does not take it.
    return cache->cache->Insert(key.slice(), copy.release(), len, &delete_page).ok();
  } catch (...) {
    return false;
  }
}

bool bench_cache_copy(bench_cache *cache, uint64_t number, size_t at, char *into, size_t len) {
  const Key key(number);
  Cache::Handle *handle = cache->cache->Lookup(key.slice());
  if (handle == nullptr) return false;
  std::memcpy(into, static_cast<const char *>(cache->cache->Value(handle)) + at, len);
  cache->cache->Release(handle);
  return true;
}

void bench_cache_remove(bench_cache *cache, uint64_t number) { cache->cache->Erase(Key(number).slice()); }

uint32_t bench_rocksdb_version() { return ROCKSDB_MAJOR * 10000 + ROCKSDB_MINOR * 100 + ROCKSDB_PATCH; }
}
