//! Links the preloaded library so that its own calls are bound when it is loaded, not in the middle
//! of a hook. Also gives the build of `pagekeeper`, which carries the library, the path of its
//! source: in the workspace, or where cargo has unpacked it.
//!
//! The library names no other library than libc.so.6. Functions that C libraries before 2.34 keep
//! in others (`dlsym`, threads) are found if those are loaded; `pagekeeper run` has the thread
//! library loaded there. Mapping two more files would take a process longer than the rest of its
//! start.

fn main() {
    let source = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    // The absolute path: a checkout that was moved, or that shares its target directory with
    // another, must give its own path.
    println!("cargo::rerun-if-changed={source}/Cargo.toml");
    println!("cargo::metadata=source={source}");
    if std::env::var_os("CARGO_FEATURE_INTERPOSE").is_some() {
        println!("cargo::rustc-link-arg=-Wl,-z,now");
    }
}
