#!/usr/bin/env bash
# Builds the preloaded library for x86-64 and aarch64, and checks that each needs at most glibc 2.28 (Debian 10, RHEL
# 8), exports only names of the C library, and contains no code that can panic. Installs Rust's target, and as root on
# Debian the linker. Names each target that can't be built here; with PAGEKEEPER_REQUIRE_ALL=1 that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
out=${CARGO_TARGET_DIR:-target}/cross
newest=2.28

scripts/require-rust.sh

build() { # target
    "$cargo" rustc --quiet -p pagekeeper-preload --lib --crate-type cdylib --features interpose \
        --config crates/operate/preload/profile.toml --profile preload --target-dir "$out" --target "$1"
}

check() { # target, prefix of its tools
    local library="$out/$1/preload/libpagekeeper_preload.so" symbols bad failed=0
    symbols=$("$2objdump" -T "$library")
    bad=$(grep -oE 'GLIBC_[0-9.]+' <<<"$symbols" | sort -u -V | sed 's/GLIBC_//' |
        awk -v newest="$newest" '{ split($1, a, "."); split(newest, b, "."); if (a[1] > b[1] || a[1] == b[1] && a[2] > b[2]) print }')
    if [ -n "$bad" ]; then
        echo "$1: needs a C library newer than $newest:" $bad >&2
        failed=1
    fi
    bad=$(grep -vE '\*UND\*|^$|SYMBOL TABLE|file format' <<<"$symbols" | awk '{ print $NF }' | grep -E '^_Z|^_R|rust|pagekeeper' || true)
    if [ -n "$bad" ]; then
        echo "$1: exports more than hooks:" $bad >&2
        failed=1
    fi
    bad=$("$2nm" "$library" | grep -E 'panicking|slice_index_fail|unwrap_failed|expect_failed' | awk '{ print $3 }' || true)
    if [ -n "$bad" ]; then
        echo "$1: could panic:" $bad >&2
        failed=1
    fi
    bad=$("$2readelf" -d "$library" | grep NEEDED | grep -vE '\[(libc\.so\.6|ld-linux.*)\]' || true)
    if [ -n "$bad" ]; then
        echo "$1: adds more mapped memory to each process than allowed:" $bad >&2
        failed=1
    fi
    if ! grep -qE ' w .*dlsym$' <<<"$symbols"; then
        echo "$1: cannot be loaded before glibc 2.34, where dlsym is in another library" >&2
        failed=1
    fi
    [ "$failed" = 0 ] && echo "$1: good"
    return "$failed"
}

failed=0
host=$(rustc -vV | sed -n 's/^host: //p')
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
    prefix=
    if [ "$target" != "$host" ]; then
        machine=${target%%-*}
        prefix=$machine-linux-gnu-
        if ! rustup target add "$target" >/dev/null 2>&1; then
            echo "$target: not built, since rustup can't install Rust's library for it here" >&2
            [ "${PAGEKEEPER_REQUIRE_ALL:-0}" = 0 ] || failed=1
            continue
        fi
        if ! command -v "${prefix}gcc" >/dev/null; then
            scripts/packages.sh "a linker for $target: gcc-${machine//_/-}-linux-gnu libc6-dev-${machine/aarch64/arm64}-cross" || true
        fi
        if ! command -v "${prefix}gcc" >/dev/null; then
            echo "$target: checked, but not linked, since ${prefix}gcc is missing" >&2
            "$cargo" check --quiet -p pagekeeper-preload --features interpose --target-dir "$out" --target "$target" || failed=1
            [ "${PAGEKEEPER_REQUIRE_ALL:-0}" = 0 ] || failed=1
            continue
        fi
        variable=${target//-/_}
        export "CARGO_TARGET_${variable^^}_LINKER=${prefix}gcc"
    fi
    if build "$target"; then
        check "$target" "$prefix" || failed=1
    else
        failed=1
    fi
done
exit "$failed"
