//! Builds the C++ functions that call `RocksDB`, if the feature is enabled.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "rocksdb")]
    rocksdb();
}

#[cfg(feature = "rocksdb")]
fn rocksdb() {
    const ROCKSDB_SOURCE: &str = "src/rocksdb.cc";
    println!("cargo::rerun-if-changed={ROCKSDB_SOURCE}");
    let built = cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file(ROCKSDB_SOURCE)
        // Headers of another project.
        .flag_if_supported("-Wno-unused-parameter")
        .try_compile("pagekeeper_bench_rocksdb");
    if let Err(error) = built {
        println!(
            "cargo::error=the feature `rocksdb` needs a C++ compiler and RocksDB's headers (Debian: librocksdb-dev; \
             `make bench-setup` installs them): {error}"
        );
    }
    println!("cargo::rustc-link-lib=rocksdb");
}
