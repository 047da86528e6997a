#!/usr/bin/env bash
# Any warning ends it. lint.sh [PART...]: all, or these: text (formatting, words), clippy, code (clippy, the preloaded library's, documentation),
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
    # Words that a reader of Linux or database code would have to look up: there is a plain one for each ("fix", "reported").
    if grep -rniE '(^|[^a-z])(m[e]nds?|m[e]nded|w[o]ods|t[o]ld)([^a-z]|$)' README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md Makefile \
        bench/README.md bench/src bench/tests crates deploy docs/src integrations fuzz/fuzz_targets scripts tests; then
        echo "The lines above use words of no field: see CONTRIBUTING.md." >&2
        return 1
    fi
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
