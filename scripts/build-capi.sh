#!/usr/bin/env bash
# build-capi.sh DIRECTORY [LIBRARY] — lays out the C library in a directory: include, lib, lib/pkgconfig, lib/cmake.
#
# LIBRARY is a static library that cargo has built; without it, cargo's profile `release` builds one, with PK_CHECKED=1
# one that finds the use of closed handles. Needs a C compiler and Rust. The shared library is linked here from the static
# one, since rustc cannot give symbols versions.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
to=${1:?a directory to lay it out in}
library=${2:-}

scripts/require-rust.sh
if ! command -v "${CC:-cc}" >/dev/null; then
    echo "A C compiler is missing: apt-get install gcc" >&2
    exit 1
fi
if [ -z "$library" ]; then
    "$cargo" build --quiet --package pagekeeper-capi --lib --release ${PK_CHECKED:+--features checked}
    library=$target/release/libpagekeeper_capi.a
fi

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
major=${version%%.*}
filled() { # filled TEMPLATE FILE
    sed -e "s/@VERSION@/$version/g" -e "s/@MAJOR@/$major/g" "$1" >"$2"
}

mkdir -p "$to"/include "$to"/lib/pkgconfig "$to"/lib/cmake/pagekeeper
install --mode 644 crates/engine/capi/include/pagekeeper.h crates/engine/capi/include/pagekeeper.hpp "$to/include/"
install --mode 644 "$library" "$to/lib/libpagekeeper.a"
filled crates/engine/capi/pagekeeper.pc.in "$to/lib/pkgconfig/pagekeeper.pc"
filled crates/engine/capi/pagekeeper-config.cmake.in "$to/lib/cmake/pagekeeper/pagekeeper-config.cmake"

shared=libpagekeeper.so.$version
"${CC:-cc}" -shared -o "$to/lib/$shared" -Wl,-soname,"libpagekeeper.so.$major" \
    -Wl,--version-script=crates/engine/capi/pagekeeper.map -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,-z,defs -Wl,-z,nodelete \
    -Wl,--whole-archive "$to/lib/libpagekeeper.a" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
ln -sf "$shared" "$to/lib/libpagekeeper.so.$major"
ln -sf "libpagekeeper.so.$major" "$to/lib/libpagekeeper.so"
