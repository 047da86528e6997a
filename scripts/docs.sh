#!/usr/bin/env bash
# Builds the book in target/book, and checks the links of all documents.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-$PWD/target}

if ! PATH="$target/tools/bin:$PATH" command -v mdbook >/dev/null; then
    echo "mdbook is missing: installing it into $target/tools (cargo install --locked mdbook)" >&2
    "$cargo" install --locked --root "$target/tools" mdbook
fi
PATH="$target/tools/bin:$PATH" mdbook build docs --dest-dir "$target/book"
"$cargo" test --quiet --package pagekeeper --test docs -- links summary
echo "The book: $target/book/index.html"
