#!/usr/bin/env bash
# Any warning ends it. lint.sh [PART...]: all, or these: text (formatting), clippy, code (clippy, the preloaded library's, documentation),
# unused (dependencies that nobody uses).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

for component in fmt clippy; do
    if ! "$cargo" "$component" --version >/dev/null 2>&1; then
        echo "cargo $component is missing: rustup component add rustfmt clippy" >&2
        exit 1
    fi
done

text() {
    "$cargo" fmt --all --check
}
clippy() {
    "$cargo" clippy --workspace --all-targets -- -D warnings
}
code() {
    clippy
    # The library that is preloaded, without the standard library.
    "$cargo" clippy -p pagekeeper-preload --lib --features interpose -- -D warnings
    # Examples, of which there are none, have the dependencies' features be those that clippy has checked: nothing is checked twice.
    RUSTDOCFLAGS="-D warnings" "$cargo" doc --workspace --no-deps --lib --bins --examples
}
unused() {
    scripts/unused-dependencies.sh
}

[ $# -gt 0 ] || set -- text code unused
for part in "$@"; do
    "$part"
done
