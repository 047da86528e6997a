//! Links the library that is preloaded so that its own calls are bound as it is loaded, not in the midst of a hook.
//!
//! It names no library but libc.so.6: what C libraries before 2.34 keep in others (`dlsym`, threads) is found where it is loaded, and
//! `pagekeeper run` has threads loaded there. To map two more files would take a process longer than all else at its start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_INTERPOSE").is_some() {
        println!("cargo:rustc-link-arg=-Wl,-z,now");
    }
}
