#!/usr/bin/env bash
# sanitize.sh [ROUNDS [PART…]] — runs threaded and unsafe code under AddressSanitizer and ThreadSanitizer, and the page
# cache under Miri. Not part of CI. ROUNDS is the number of rounds under each sanitizer (3). Parts (default: all):
#   kernel  walking, warming, the work queue
#   io      the back-ends
#   cache   the page cache: its unit tests, stories, regressions, and stress (PAGEKEEPER_STRESS_SECONDS=20)
#   bulk    bulk output: its unit tests
#   wal     the logs: their unit tests except crashes and models
#   store   page store and ordered map: their unit tests except crashes and models, and the store's stories
#   miri    the parts of the page cache that an interpreter can finish: tests/interpreted.rs, and the unit tests of pure parts
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
rounds=${1:-3}
parts=("${@:2}")
[ ${#parts[@]} -gt 0 ] || parts=(kernel io cache bulk wal store miri)

if ! version=$("$cargo" +nightly --version 2>/dev/null); then
    echo "Sanitizers need a nightly compiler: rustup toolchain install nightly" >&2
    exit 1
fi
target=$(rustc +nightly -vV | sed -n 's/^host: //p')
directory=${CARGO_TARGET_DIR:-target}
export PAGEKEEPER_STRESS_SECONDS=${PAGEKEEPER_STRESS_SECONDS:-20}
echo "$version"

# under SANITIZER OPTIONS OF CARGO…
under() {
    local sanitizer=$1 flags=-Zsanitizer=$1
    # Uses the cache's fallback for a missing membarrier(2), which ThreadSanitizer understands.
    [ "$sanitizer" = address ] || flags+=" --cfg pagekeeper_sanitize"
    echo "== $*"
    for ((round = 1; round <= rounds; round++)); do
        # Its own target directory, since the flags differ from all other builds.
        RUSTFLAGS=$flags CARGO_TARGET_DIR=$directory/sanitize-$sanitizer \
            TSAN_OPTIONS="suppressions=$PWD/scripts/tsan-suppressions.txt ${TSAN_OPTIONS:-}" \
            "$cargo" +nightly test --target "$target" "${build[@]}" "${@:2}"
    done
}

# all SANITIZER — the parts under it.
all() {
    local part
    for part in "${parts[@]}"; do
        case $part in
        kernel) under "$1" --package pagekeeper-kernel --lib -- walk:: warm:: ;;
        io) under "$1" --package pagekeeper-io --package pagekeeper-simdisk --lib --tests ;;
        cache)
            # loom runs threads on its own stacks, which sanitizers report as a crash.
            under "$1" --package pagekeeper-cache --lib --test stress --test regressions --test story -- --skip model::
            under "$1" --package pagekeeper-file-table --lib -- --skip model::
            ;;
        bulk) under "$1" --package pagekeeper-bulk --lib ;;
        wal) under "$1" --package pagekeeper-wal --lib -- --skip model:: --skip crash --skip injected ;;
        store)
            # One at a time: ThreadSanitizer does not see rustix's direct munmap calls, and takes
            # the cache of one test for an earlier one at the same addresses.
            under "$1" --package pagekeeper-store --package pagekeeper-tree --lib --test story --test faults -- --test-threads=1 \
                --skip model:: --skip crash --skip injected
            ;;
        miri) ;;
        *)
            echo "No such part: $part (kernel io cache bulk wal store miri)" >&2
            exit 1
            ;;
        esac
    done
}

build=()
all address
if [ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]; then
    build=(-Zbuild-std)
    all thread
else
    echo "ThreadSanitizer did not run: it must rebuild the standard library, whose source is missing:" >&2
    echo "rustup component add rust-src --toolchain nightly" >&2
fi

if [[ " ${parts[*]} " == *" miri "* ]]; then
    if ! "$cargo" +nightly miri --version >/dev/null 2>&1; then
        echo "Miri was not run: rustup component add miri rust-src --toolchain nightly" >&2
        exit 0
    fi
    echo "== miri"
    # Hash maps and temporary files need the clock.
    export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}" CARGO_TARGET_DIR=$directory/sanitize-miri PROPTEST_CASES=2
    "$cargo" +nightly miri test --package pagekeeper-cache --test interpreted
    "$cargo" +nightly miri test --package pagekeeper-cache --lib -- \
        --skip model:: entry:: s3fifo:: queues:: readers waiter:: thread:: bypass_buffer:: batch::
fi
