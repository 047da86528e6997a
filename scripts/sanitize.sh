#!/usr/bin/env bash
# The kernel crate's threads under AddressSanitizer and ThreadSanitizer: walking, warming, the work queue. Not part of CI.
#
# sanitize.sh [ROUNDS [FILTER…]] — rounds of the tests under each (3), and which tests (walk warm).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
rounds=${1:-3}
tests=("${@:2}")
[ ${#tests[@]} -gt 0 ] || tests=(walk:: warm::)

if ! version=$("$cargo" +nightly --version 2>/dev/null); then
    echo "Sanitizers need a nightly compiler: rustup toolchain install nightly" >&2
    exit 1
fi
target=$(rustc +nightly -vV | sed -n 's/^host: //p')
echo "$version"

# under SANITIZER [OPTIONS OF CARGO…]
under() {
    echo "== $1"
    for ((round = 1; round <= rounds; round++)); do
        # Its own target directory: the flags are others than those of all else that is built.
        RUSTFLAGS="-Zsanitizer=$1" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitize-$1" \
            "$cargo" +nightly test --package pagekeeper-kernel --lib --target "$target" "${@:2}" -- "${tests[@]}"
    done
}

under address
if [ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]; then
    under thread -Zbuild-std
else
    echo "ThreadSanitizer was not run: it needs the standard library built with it, and its source is not there:" >&2
    echo "rustup component add rust-src --toolchain nightly" >&2
fi
