#!/usr/bin/env bash
# Pagekeeper on the kernels of distributions, in virtual machines (scripts/machine.sh) with cgroup v2, one after the other: unit tests of
# what asks the kernel, every command with its figures compared with other programs' (scripts/kernels-tour.py), and what the kernel can
# do, which comes to the table of docs/src/kernels.md.
#
# Arguments are SUITE or SUITE:FLAVOUR (scripts/fetch-kernel.sh); all that are below without. Ubuntu's need UBUNTU_MIRROR
# on Debian. Kernels are kept in the target directory. A kernel that can't be had is named, and is no failure. Takes some minutes for each; a fraction of it with QEMU_ACCEL=kvm. For x86-64,
# as root.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
kernels=(bullseye jammy:virtual bookworm noble:virtual trixie sid)

scripts/require-rust.sh
scripts/packages.sh \
    "the virtual machines: qemu-system-x86 busybox-static kmod cpio e2fsprogs xfsprogs xz-utils zstd" \
    "the stories in them: python3 util-linux-extra"
[ "$(id -u)" -eq 0 ] || { echo "make test-kernels reads this system's whole root: run it as root." >&2; exit 1; }
[ $# -gt 0 ] || set -- "${kernels[@]}"

base=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/kernels
mkdir -p "$base"

# built OPTION...: has cargo build the tests of crates; their paths.
built() {
    "$cargo" test --no-run --message-format=json "$@" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4
}

# What is tried on each kernel: of the unit tests what asks the kernel and, in a machine that is emulated, takes no minutes.
declare -A chosen=(
    [kernel]="--skip model:: --skip of_fifteen_tib" [io]="" [preload]="" [policy]=""
    [cache]="sys:: builder bypass clear_ahead"
    [guard]="sample:: streams:: descriptors:: ownership:: usage:: guard::tests notify"
)
crates=()
for name in "${!chosen[@]}"; do
    crates+=(--package "pagekeeper-$name")
done
unit_tests() { # the paths
    local name tests=""
    for name in "${!chosen[@]}"; do
        tests+="$(grep -E "/pagekeeper_$name-[0-9a-f]+$" <<<"$1" | tail -1) ${chosen[$name]} --test-threads=2;"
    done
    echo "$tests"
}

build() {
    local paths
    paths=$(built "${crates[@]}" --lib)
    "$cargo" build --quiet --package pagekeeper
    pagekeeper=$(dirname "$(dirname "$(head -1 <<<"$paths")")")/pagekeeper
    tests=$(unit_tests "$paths")
}

logs=$(mktemp --directory)
trap 'rm -rf "$logs"' EXIT
status=0 tests=""

boot() { # name
    local suite=${1%:*} flavour=${1#*:}
    [ "$flavour" != "$1" ] || flavour=amd64
    local kernel=$base/$suite-$flavour
    if ! scripts/fetch-kernel.sh "$suite" "$flavour" "$kernel" 2>"$logs/why"; then
        echo "$1: not tried, its kernel can't be had: $(tail -1 "$logs/why")"
        return 0
    fi
    [ -n "$tests" ] || build
    echo "$1, Linux $(cat "$kernel/release")"
    SECONDS=0
    scripts/machine.sh "$kernel" 2G 1800 PAGEKEEPER="$pagekeeper" UNIT_TESTS="$tests" STORIES="${STORIES:-}" \
        "$PWD/scripts/kernels-guest.sh" | tee "$logs/$suite-$flavour" || status=1
    echo "$1: $SECONDS s"
    python3 scripts/kernels-table.py docs/src/kernels.md "$suite" "$flavour" "$(cat "$kernel/release")" "$logs/$suite-$flavour"
}

for name in "$@"; do
    boot "$name"
done
: >"$logs/why"
cat "$logs"/* >"$logs/all"
scripts/count-tests.sh "$logs/all" "$status"
