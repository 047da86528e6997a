//! Builds the library that `pagekeeper run` preloads, for the target of this crate, and leaves it
//! in `OUT_DIR`. The crate contains a copy of it.
//!
//! The library has its own crate type, without unwinding, and its own feature. Therefore a separate
//! cargo builds it, in its own target directory. The dependency's build script names the library's
//! source: in the workspace, or where cargo has unpacked a published package. Settings for the
//! outer build alone (flags, wrappers) are not passed on: instrumented code must not run inside
//! other programs.
//!
//! `PAGEKEEPER_PRELOAD_LIBRARY` names a library that was built before, to be used instead. There
//! are two uses: a program linked statically with musl, which otherwise contains no library; and a
//! program for an older glibc, whose linker can't link the library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings of the outer build that do not apply to the library, besides flags and profiles.
const CLEARED_VARIABLES: [&str; 8] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CARGO_INCREMENTAL",
    "CARGO_PRIMARY_PACKAGE",
];

/// The variable that names a library built before.
const LIBRARY_VARIABLE: &str = "PAGEKEEPER_PRELOAD_LIBRARY";

fn main() {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let source = PathBuf::from(variable("DEP_PAGEKEEPER_PRELOAD_SOURCE"));
    let out = PathBuf::from(variable("OUT_DIR"));
    // The last four exist only in the workspace.
    for path in [
        "Cargo.toml",
        "build.rs",
        "profile.toml",
        "src",
        "../../../Cargo.lock",
        "../../../Cargo.toml",
        "../../base/policy/Cargo.toml",
        "../../base/policy/src",
    ] {
        let path = source.join(path);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    println!("cargo::rerun-if-changed=build.rs");

    let carried = out.join("library.so");
    println!("cargo::rerun-if-env-changed={LIBRARY_VARIABLE}");
    println!("cargo::rustc-check-cfg=cfg(carries_another)");
    let target = (variable("CARGO_CFG_TARGET_OS"), variable("CARGO_CFG_TARGET_ENV"));
    let is_static = target == (OsString::from("linux"), OsString::from("musl"));
    let is_dynamic = target == (OsString::from("linux"), OsString::from("gnu"));
    if (is_static || is_dynamic)
        && let Some(given) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from)
    {
        println!("cargo::rerun-if-changed={}", given.display());
        let library = read(&given);
        assert!(
            is_for(&library, &variable("CARGO_CFG_TARGET_ARCH")),
            "{LIBRARY_VARIABLE}={}: no library for this processor",
            given.display()
        );
        write(&carried, &library);
        if is_static {
            println!("cargo::rustc-cfg=carries_another");
        }
        return;
    }
    if !is_dynamic {
        // The program says so when it is asked to run something.
        write(&carried, &[]);
        return;
    }

    let target = variable("TARGET");
    let directory = out.join("preload");
    let mut cargo = Command::new(variable("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_the_outer_build = CLEARED_VARIABLES.contains(&&*text)
            || [
                "CARGO_FEATURE_",
                "CARGO_CFG_",
                "CARGO_PKG_",
                "CARGO_PROFILE_",
                "CARGO_MANIFEST_",
                "CARGO_BUILD_",
            ]
            .iter()
            .any(|prefix| text.starts_with(prefix))
            || (text.starts_with("CARGO_TARGET_") && text.ends_with("_RUSTFLAGS"));
        if of_the_outer_build {
            cargo.env_remove(name);
        }
    }
    // Empty, it stands above flags in configuration files, too.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "").current_dir(&source);
    cargo.args(["rustc", "--package", "pagekeeper-preload", "--lib", "--crate-type", "cdylib"]);
    cargo.args(["--features", "interpose", "--config", "profile.toml", "--profile", "preload"]);
    cargo.args(["--locked", "--quiet", "--target-dir"]).arg(&directory).arg("--target").arg(&target);
    let output = cargo
        .output()
        .unwrap_or_else(|error| panic!("can't start {}: {error}", cargo.get_program().display()));
    assert!(
        output.status.success(),
        "the library that `pagekeeper run` preloads could not be built ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let built = directory.join(&target).join("preload/libpagekeeper_preload.so");
    write(&carried, &read(&built));
}

/// Whether this is an ELF file of 64 bits, little-endian, for a processor (`e_machine` in elf(5)).
fn is_for(library: &[u8], architecture: &std::ffi::OsStr) -> bool {
    let machine: u16 = match architecture.to_str() {
        Some("x86_64") => 62,
        Some("aarch64") => 183,
        _ => return false,
    };
    library.starts_with(b"\x7fELF\x02\x01") && library.get(18..20) == Some(&machine.to_le_bytes())
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("can't read {}: {error}", path.display()))
}

/// Writes only what is new, so that the program is not linked again for nothing.
fn write(path: &Path, bytes: &[u8]) {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return;
    }
    std::fs::write(path, bytes).unwrap_or_else(|error| panic!("can't write {}: {error}", path.display()));
}
