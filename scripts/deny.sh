#!/usr/bin/env bash
# Checks the dependencies by deny.toml. CHECKS narrows it: CHECKS="licenses bans sources" does without a network.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
if ! "$cargo" deny --version >/dev/null 2>&1; then
    echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2
    exit 1
fi
# CHECKS is unquoted: a list of words.
# shellcheck disable=SC2086
"$cargo" deny check --config deny.toml ${CHECKS:-}
