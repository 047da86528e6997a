#!/usr/bin/env bash
# Dependencies that nobody uses: any ends it. The tool is built where everything is built, unless it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}/tools")
PATH=$PATH:$tools/bin
if ! command -v cargo-machete >/dev/null; then
    "${CARGO:-cargo}" install --quiet --locked --root "$tools" cargo-machete@0.9.2
fi
cargo-machete bench crates docs fuzz integrations/sqlite
