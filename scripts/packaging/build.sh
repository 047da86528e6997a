#!/usr/bin/env bash
# build.sh MACHINE DIRECTORY — builds the program for x86_64 or aarch64, twice, into DIRECTORY: `pagekeeper`, for any glibc from 2.28 on
# (RHEL 8, Debian 10), and `pagekeeper-static`, which needs no C library and carries the other one's library for `pagekeeper run`.
# Into DIRECTORY/libraries it builds the C library (capi) and the VFS for SQLite, for the same glibc.
#
# The same source gives the same bytes in any directory: names of directories are left out. zig links against an old glibc: it has the
# names and versions of each release's functions (ziglang and cargo-zigbuild, from PyPI into target/tools). Fails if the result
# needs a newer glibc, or another library.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
machine=$1 out=$2
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
build=$target/packages-build
tools=$target/tools
oldest=2.28
zig=0.17.1 zigbuild=0.24.1

case $machine in
    x86_64) debian=amd64 ;;
    *) debian=arm64 ;;
esac
if [ "$machine" != "$(uname --machine)" ]; then
    scripts/packages.sh "a linker for $machine: gcc-${machine//_/-}-linux-gnu libc6-dev-$debian-cross"
fi
gnu=$machine-unknown-linux-gnu musl=$machine-unknown-linux-musl
for triple in "$gnu" "$musl"; do
    if ! rustup target list --installed | grep --quiet --line-regexp --fixed-strings "$triple" && ! rustup --quiet target add "$triple"; then
        echo "Rust's library for $triple is missing, and rustup can't install it here" >&2
        exit 1
    fi
done
if [ "$(PYTHONPATH=$tools/zig python3 -m ziglang version 2>/dev/null)" != "$zig" ] || [ ! -x "$tools/zig/bin/cargo-zigbuild" ]; then
    rm -rf "$tools/zig"
    python3 -m pip install --quiet --no-deps --no-compile --root-user-action ignore --target "$tools/zig" "ziglang==$zig" "cargo-zigbuild==$zigbuild"
fi
export PYTHONPATH=$tools/zig PATH=$tools/zig/bin:$PATH ZIG_GLOBAL_CACHE_DIR=$tools/zig-cache ZIG_LOCAL_CACHE_DIR=$tools/zig-cache

export CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_STRIP=symbols
flags=("--remap-path-prefix=$build=/usr/src/pagekeeper/target" "--remap-path-prefix=$PWD=/usr/src/pagekeeper"
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo")
joined() {
    local IFS=$'\x1f'
    echo "$*"
}

# The library that programs load names no new function, whatever glibc it is linked with, and one (dlsym) by a version that zig, for
# this glibc, has in another library alone.
linker=()
if [ "$machine" != "$(uname --machine)" ]; then
    variable=${gnu//-/_}
    # For this alone: the program would be linked by it, too, and for this machine's glibc.
    linker=("CARGO_TARGET_${variable^^}_LINKER=$machine-linux-gnu-gcc")
fi
CARGO_ENCODED_RUSTFLAGS=$(joined "${flags[@]}") env "${linker[@]}" "$cargo" rustc --locked --quiet --package pagekeeper-preload --lib --crate-type cdylib \
    --features interpose --config crates/operate/preload/profile.toml --profile preload --target "$gnu" --target-dir "$build/preload"
export PAGEKEEPER_PRELOAD_LIBRARY=$build/preload/$gnu/preload/libpagekeeper_preload.so

CARGO_ENCODED_RUSTFLAGS=$(joined "${flags[@]}") cargo-zigbuild zigbuild --release --locked --quiet --package pagekeeper \
    --target "$gnu.$oldest" --target-dir "$build"
program=$build/$gnu/release/pagekeeper
scripts/packaging/check-glibc.sh "$oldest" "$program" "$PAGEKEEPER_PRELOAD_LIBRARY"

# Rust brings musl, and a linker for all processors.
CARGO_ENCODED_RUSTFLAGS=$(joined "${flags[@]}" -Clinker=rust-lld -Clinker-flavor=ld.lld) \
    "$cargo" build --release --locked --quiet --package pagekeeper --target "$musl" --target-dir "$build"
static=$build/$musl/release/pagekeeper
if readelf --dynamic "$static" | grep --quiet NEEDED || readelf --program-headers "$static" | grep --quiet INTERP; then
    echo "$static is not static" >&2
    exit 1
fi

CARGO_ENCODED_RUSTFLAGS=$(joined "${flags[@]}") cargo-zigbuild zigbuild --release --locked --quiet --package pagekeeper-capi \
    --package pagekeeper-sqlite --lib --target "$gnu.$oldest" --target-dir "$build"
libraries=$out/libraries
install -D --mode 644 "$build/$gnu/release/libpagekeeper_sqlite.so" "$libraries/pagekeeper_sqlite.so"
printf '#!/bin/sh\nexec python3 -m ziglang cc -s -target %s "$@"\n' "$machine-linux-gnu.$oldest" >"$build/cc-$machine"
chmod 755 "$build/cc-$machine"
CC=$build/cc-$machine scripts/build-capi.sh "$libraries/capi" "$build/$gnu/release/libpagekeeper_capi.a"
scripts/packaging/check-glibc.sh "$oldest" "$libraries/pagekeeper_sqlite.so" "$libraries"/capi/lib/libpagekeeper.so.*.*

install -D --mode 755 "$program" "$out/pagekeeper"
install -D --mode 755 "$static" "$out/pagekeeper-static"
