#!/usr/bin/env bash
# Formatting, clippy and documentation: any warning ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

for component in fmt clippy; do
    if ! "$cargo" "$component" --version >/dev/null 2>&1; then
        echo "cargo $component is missing: rustup component add rustfmt clippy" >&2
        exit 1
    fi
done
# Benchmarks are a workspace of their own, built into the same place.
bench=(--manifest-path bench/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}")

"$cargo" fmt --all --check
"$cargo" fmt --manifest-path bench/Cargo.toml --check
"$cargo" clippy --workspace --all-targets -- -D warnings
"$cargo" clippy "${bench[@]}" --all-targets -- -D warnings
# The library that is preloaded, without the standard library.
"$cargo" clippy -p pagekeeper-preload --lib --features interpose -- -D warnings
RUSTDOCFLAGS="-D warnings" "$cargo" doc --workspace --no-deps
