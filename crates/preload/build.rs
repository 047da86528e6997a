//! Links the library that is preloaded so that its own calls are bound as it is loaded, not in the midst of a hook; and gives the build
//! of `pagekeeper`, which carries the library, the place of its source: in the workspace, or where cargo has unpacked it.
//!
//! It names no library but libc.so.6: what C libraries before 2.34 keep in others (`dlsym`, threads) is found where it is loaded, and
//! `pagekeeper run` has threads loaded there. To map two more files would take a process longer than all else at its start.

fn main() {
    let source = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    // By its absolute path: a checkout that has moved, or shares its target directory with another, is to give its own place.
    println!("cargo::rerun-if-changed={source}/Cargo.toml");
    println!("cargo::metadata=source={source}");
    if std::env::var_os("CARGO_FEATURE_INTERPOSE").is_some() {
        println!("cargo::rustc-link-arg=-Wl,-z,now");
    }
}
