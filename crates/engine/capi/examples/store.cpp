// A page store and a page cache by the C++ header: `store DIRECTORY` creates a store, changes it, copies it
// and reads the copy's pages through a cache.
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <pagekeeper.hpp>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: store DIRECTORY\n");
    return 2;
  }
  const std::string directory = argv[1];
  {
    pk_store_options options = PK_STORE_OPTIONS_INIT;
    options.memory = 16 << 20;
    options.journal_bytes = 1 << 20;
    pagekeeper::Store store(directory + "/store", options);
    auto txn = store.begin_write();
    const auto root = txn.allocate();
    txn.write(root, 0, "balance: 100", 12);
    txn.set_root(root);
    txn.commit();

    const auto before = store.begin_read();
    auto second = store.begin_write();
    second.write(root, 9, "020", 3);
    second.commit();
    char was[13] = {}, is[13] = {};
    before.read(root, 0, was, 12);
    store.begin_read().read(root, 0, is, 12);
    std::printf("was %s, is %s\n", was, is);

    auto abandoned = store.begin_write();
    abandoned.write(root, 0, "nothing", 7);
    // Without a commit, it has no effect.
    { auto gone = std::move(abandoned); }

    // An ordered map in pages of the same store.
    auto map = store.begin_write();
    const auto fruit = map.create_map();
    for (const auto* name : {"cherry", "apple", "banana"}) map.put(fruit, name, std::string("a ") + name);
    map.put(fruit, "durian", std::string(100000, 'd'));
    map.remove(fruit, "apple");
    map.commit();
    std::string value;
    const auto now = store.begin_read();
    std::printf("durian: %zu bytes\n", now.get(fruit, "durian", value) ? value.size() : 0);
    now.scan(fruit, "", [](const std::string& key, const std::string& of_it) {
      std::printf("%s is %s\n", key.c_str(), of_it.size() < 100 ? of_it.c_str() : "large");
      return true;
    });
    store.backup(directory + "/copy");
    store.close();
  }
  pagekeeper::Store copy(directory + "/copy");
  char is[13] = {};
  const auto snapshot = copy.begin_read();
  snapshot.read(snapshot.root(), 0, is, 12);
  std::printf("copied: %s\n", is);

  // Threads share a cache and a file.
  pagekeeper::Cache cache(uint64_t{4} << 20);
  const auto file = cache.open(directory + "/copy/data");
  std::vector<std::thread> threads;
  for (int nth = 0; nth < 4; nth++)
    threads.emplace_back([&] {
      std::vector<char> buffer(4096);
      for (int again = 0; again < 1000; again++) file.read(0, buffer.data(), buffer.size());
    });
  for (auto& thread : threads) thread.join();
  std::printf("%s\n", cache.stats().hits > 0 ? "hits" : "no hits");

  // A file of pages that the program itself changes.
  const auto table = cache.open_owned(directory + "/table", 1 << 20);
  std::vector<char> page(4096, 'a');
  table.write_pages(0, page.data(), page.size());
  page.assign(page.size(), 'b');
  table.write_pages(0, page.data(), page.size());
  table.read(0, page.data(), 1);
  std::printf("page of %c\n", page[0]);

  try {
    cache.open(directory + "/missing");
  } catch (const pagekeeper::Error& error) {
    std::printf("%s\n", pk_status_name(error.status()));
  }
  return 0;
} catch (const pagekeeper::Error& error) {
  std::fprintf(stderr, "%s: %s\n", pk_status_name(error.status()), error.what());
  return 1;
}
