#!/usr/bin/env bash
# Checks the dependencies against deny.toml with cargo-deny, which is built in target/tools if missing, and checks that
# each dependency is used. CHECKS selects checks: CHECKS="licenses bans sources" needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
tools=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/tools
PATH=$PATH:$tools/bin
if ! "$cargo" deny --version >/dev/null 2>&1; then
    "$cargo" install --quiet --locked --root "$tools" cargo-deny
fi
# CHECKS is unquoted: a list of words.
# shellcheck disable=SC2086
"$cargo" deny check --config deny.toml ${CHECKS:-}
scripts/lint.sh unused
