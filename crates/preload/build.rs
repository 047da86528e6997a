//! Has the library that is preloaded name the C library's parts that older ones (before 2.34) keep in files of their own: `dlsym` is
//! looked for in libdl.so.2, threads in libpthread.so.0. Newer ones have both files too, all but empty.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_INTERPOSE").is_some() {
        let parts = "-l:libdl.so.2,-l:libpthread.so.0";
        println!("cargo:rustc-link-arg=-Wl,--push-state,--no-as-needed,{parts},--pop-state");
        // Its own calls are bound as it is loaded, not in the midst of a hook.
        println!("cargo:rustc-link-arg=-Wl,-z,now");
    }
}
