#!/usr/bin/env bash
# Lists the public items of the crates for engine authors in crates/*/*/api.txt, one per line, so that a review shows a
# change. With --check, compares instead of writing. Needs a nightly compiler for rustdoc's JSON; builds the tool that
# reads it if missing.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
crates=(bulk cache file-table io kernel simdisk store tree wal)

scripts/require-rust.sh
if ! "$cargo" +nightly --version >/dev/null 2>&1; then
    echo "A nightly compiler is missing: rustup toolchain install --profile minimal nightly" >&2
    exit 1
fi
PATH=$PATH:$target/tools/bin
if ! command -v cargo-public-api >/dev/null; then
    "$cargo" install --quiet --locked --root "$target/tools" cargo-public-api@0.52.0
fi

mkdir -p "$target"
changed=()
for crate in "${crates[@]}"; do
    list=$(echo crates/*/"$crate")/api.txt
    new=$("$cargo" public-api --package "pagekeeper-$crate" -sss --color never --target-dir "$target/api" 2>"$target/api-messages") || {
        cat "$target/api-messages" >&2
        exit 1
    }
    if [ "${1:-}" != --check ]; then
        echo "$new" >"$list"
    elif ! diff --unified=0 "$list" <(echo "$new"); then
        changed+=("$list")
    fi
done
if [ ${#changed[@]} -gt 0 ]; then
    echo "These lists differ from the crates: ${changed[*]}. If that is intended: make api" >&2
    exit 1
fi
