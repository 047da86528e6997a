#!/usr/bin/env bash
# fuzz.sh [TARGET [SECONDS [LIBFUZZER-OPTION…]]] — fuzzes one parser, or each in turn with TARGET "all". Not part of CI,
# which runs the same targets without coverage (crates/dev/fuzzing/tests/random_input).
#
# Failing inputs stay in fuzz/artifacts/TARGET; `cargo +nightly fuzz run TARGET FILE` repeats one. The seed is printed
# at the start; the option `-seed=N` repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${1:-all}
seconds=${2:-60}

if ! "$cargo" +nightly --version >/dev/null 2>&1; then
    echo "A nightly compiler is missing: rustup toolchain install nightly" >&2
    exit 1
fi
if ! "$cargo" fuzz --version >/dev/null 2>&1; then
    echo "cargo-fuzz is missing: cargo install cargo-fuzz" >&2
    exit 1
fi
targets=$target
if [ "$target" = all ]; then
    targets=$("$cargo" fuzz list)
fi

# The seeds: valid inputs of the parsers.
"$cargo" run --quiet -p pagekeeper-fuzzing --example seeds -- fuzz/corpus

failed=
for one in $targets; do
    echo "== $one for $seconds s"
    "$cargo" +nightly fuzz run "$one" -- \
        -max_total_time="$seconds" -timeout=10 -print_final_stats=1 "${@:3}" || failed+=" $one"
done
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
