#!/usr/bin/env bash
# Checks that Rust and a C linker are installed. Prints how to get them; as root on Debian, installs the linker.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v "$cargo" >/dev/null; then
    echo "cargo isn't on PATH: install Rust $needed or later from https://rustup.rs, then open a new shell." >&2
    exit 1
fi
version=$("$cargo" --version | cut -d ' ' -f 2)
if [ "$(printf '%s\n' "$needed" "${version%%-*}" | sort -V | head -n 1)" != "$needed" ]; then
    echo "cargo $version is too old, $needed or later is needed: rustup update stable (see https://rustup.rs)." >&2
    exit 1
fi
if ! command -v cc >/dev/null; then
    scripts/packages.sh "the C linker that Rust needs: gcc libc6-dev"
    command -v cc >/dev/null || exit 1
fi
