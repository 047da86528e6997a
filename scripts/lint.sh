#!/usr/bin/env bash
# lint.sh [PART...] — runs the linters; any warning is an error. Parts: text (formatting), clippy, library (clippy of the
# preloaded library), documentation, code (these three), unused (unused dependencies), workflows (those of the public CI,
# by actionlint; skipped without Go). Without a PART, all run.
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
library() {
    # The preloaded library, which has no standard library.
    "$cargo" clippy -p pagekeeper-preload --lib --features interpose -- -D warnings
}
documentation() {
    # --examples selects the same features as `cargo test`, so that no dependency is checked twice.
    RUSTDOCFLAGS="-D warnings" "$cargo" doc --workspace --no-deps --lib --bins --examples
}
code() {
    clippy
    library
    documentation
}
unused() {
    scripts/unused-dependencies.sh
}
workflows() {
    local go
    if ! go=$(command -v go || ls /usr/local/go/bin/go 2>/dev/null); then
        echo "SKIPPED: linting of workflows: Go is missing"
        [ "${PAGEKEEPER_REQUIRE_ALL:-0}" = 0 ]
        return
    fi
    "$go" run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 .github/workflows/*.yml
}

[ $# -gt 0 ] || set -- text code unused workflows
for part in "$@"; do
    "$part"
done
