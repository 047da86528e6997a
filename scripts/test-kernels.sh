#!/usr/bin/env bash
# Tests pagekeeper on kernels of distributions, in virtual machines (scripts/machine.sh) with cgroup v2, MACHINES of
# them at a time (2): unit tests that call the kernel; every command, with its figures compared with those of other
# programs (scripts/kernels-tour.py); and the features of the kernel, which go into the table of docs/src/kernels.md. A
# machine of 1 GiB runs guard, top and doctor without memory to spare.
#
# Arguments are SUITE or SUITE:FLAVOUR (scripts/fetch-kernel.sh), and small[:SUITE[:FLAVOUR]]. Without arguments all
# machines below run, and five kernels of x86-64 and one of arm64 must pass. Machines with arm64 have their own root
# (scripts/arm64-root.sh). Kernels, roots and builds are kept in the target directory. An unavailable kernel is a
# failure, or with PAGEKEEPER_REQUIRE_ALL=0 only named. Unit tests that skip on a kernel are named and counted as
# skipped. Each machine takes some minutes; much less with QEMU_ACCEL=kvm. For x86-64, as root. --compare before the
# arguments leaves the table unchanged and fails where a kernel differs from it, as `make test-all` does. CRATES="kernel
# io" limits the unit tests to these crates; CRATES=none runs none.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
machines=(bullseye jammy:virtual bookworm noble:virtual trixie sid trixie:arm64 trixie:arm64-16k small:trixie)

scripts/require-rust.sh
scripts/packages.sh \
    "the virtual machines: qemu-system-x86 busybox-static kmod cpio e2fsprogs xfsprogs xz-utils zstd" \
    "the stories in them: python3 util-linux-extra"
[ "$(id -u)" -eq 0 ] || { echo "make test-kernels reads this system's whole root: run it as root." >&2; exit 1; }
compare=""
[ "${1:-}" != --compare ] || { compare=--compare; shift; }
whole=""
[ $# -gt 0 ] || { whole=1; set -- "${machines[@]}"; }
export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}

base=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/kernels
mkdir -p "$base"
arm_root=$base/root-arm64
logs=$(mktemp --directory)
declare -A running=()
# Machines run in their own process groups, which end with this script.
set -m
trap 'for pid in "${!running[@]}"; do kill -- "-$pid" 2>/dev/null || true; done; rm -rf "$logs"' EXIT
trap 'exit 1' INT TERM

# The unit tests for each kernel: those that call the kernel and are fast even when emulated.
declare -A chosen=(
    [kernel]="--skip model::" [io]="" [preload]="" [policy]=""
    [cache]="sys:: cache:: page_table builder bypass clear_ahead"
    [guard]="visibility:: sample:: streams:: descriptors:: ownership:: usage:: guard::tests notify"
)
crates=()
read -ra names <<<"${CRATES:-${!chosen[*]}}"
[ "${CRATES:-}" != none ] || names=()
for name in "${names[@]}"; do
    crates+=(--package "pagekeeper-$name")
done
unit_tests() { # the paths
    local name tests=""
    for name in "${names[@]}"; do
        tests+="$(grep -E "/pagekeeper_$name-[0-9a-f]+$" <<<"$1" | tail -1) ${chosen[$name]} --test-threads=2;"
    done
    echo "$tests"
}

build() {
    local paths
    # Builds all tests, as `make test` does: fewer would select other features, and dependencies would be built again.
    paths=$(scripts/test-programs.sh --workspace) || return 1
    # Debug information would take much of the small machine's memory.
    pagekeeper=$base/pagekeeper
    strip -o "$pagekeeper" "$(grep '/pagekeeper$' <<<"$paths" | tail -1)" || return 1
    tests=$(unit_tests "$paths")
    [ "${#names[@]}" -eq 0 ] || quota_tests=$(grep -E '/full_disk-[0-9a-f]+$' <<<"$paths" | sed 's/$/ quota_of_a_user --include-ignored;/' | tr -d '\n')
}

build_arm() {
    local paths path target=aarch64-unknown-linux-gnu
    scripts/packages.sh \
        "machines with arm64: qemu-system-arm" \
        "a compiler for arm64: gcc-aarch64-linux-gnu libc6-dev-arm64-cross binutils-aarch64-linux-gnu"
    rustup target add "$target" >/dev/null 2>&1 || { echo "rustup can't install Rust's library for $target here"; return 2; }
    local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
    paths=$(scripts/test-programs.sh "${crates[@]}" --lib --target "$target" --target-dir "$base/build") || return 1
    "$cargo" build --quiet --profile test --package pagekeeper --target "$target" --target-dir "$base/build" || return 1
    scripts/arm64-root.sh "$arm_root" || return 2
    for path in $paths "$base/build/$target/debug/pagekeeper"; do
        aarch64-linux-gnu-strip -o "$arm_root/opt/$(basename "$path")" "$path" || return 1
    done
    arm_tests=$(unit_tests "$(sed 's#.*/#/opt/#' <<<"$paths")")
}

# For each machine: its task, its kernel's suite, flavour and folder; and the names of running machines.
declare -A mode=() suite=() flavour=() kernel=() passed=()
status=0 tests="" quota_tests="" arm_tests="" pagekeeper=""

# skipped NAME WHY: prints a skipped test's lines (scripts/test.sh), or a failure where no test may skip.
skipped() {
    if [ "$PAGEKEEPER_REQUIRE_ALL" = 1 ]; then
        status=1
        printf '%s: %s\ntest kernels::%s ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n' "$1" "$2" "$1" | tee "$logs/$1"
    else
        printf 'SKIPPED: %s: %s\ntest kernels::%s ... ok\ntest result: ok. 1 passed; 0 failed\n' "$1" "$2" "$1" | tee "$logs/$1"
    fi
}

# Fetches and builds the parts of a machine. Fails if one is unavailable.
prepare() { # name
    local of=${1#small:}
    [ "$of" != small ] || of=trixie
    mode[$1]=tour suite[$1]=${of%:*} flavour[$1]=amd64
    [[ $1 != small* ]] || mode[$1]=small
    [[ $of != *:* ]] || flavour[$1]=${of#*:}
    kernel[$1]=$base/${suite[$1]}-${flavour[$1]}
    if ! scripts/fetch-kernel.sh "${suite[$1]}" "${flavour[$1]}" "${kernel[$1]}" 2>"$base/why"; then
        skipped "$1" "its kernel can't be had: $(tail -1 "$base/why")"
        return 1
    fi
    if [[ ${flavour[$1]} = *arm64* ]]; then
        [ -n "$arm_tests" ] || build_arm || {
            # Only a missing feature of this host is not a failure.
            [ $? -eq 2 ] || exit 1
            skipped "$1" "what arm64 needs can't be had"
            return 1
        }
    else
        [ -n "$pagekeeper" ] || build || exit 1
    fi
}

# Runs the machine in its own process.
boot() { # name
    local memory=2G root=/ program=$pagekeeper run=$tests status=0
    [ "${mode[$1]}" != small ] || memory=1G
    [ ! -e "${kernel[$1]}/modules/quota_v2.ko" ] || run+=$quota_tests
    [[ ${flavour[$1]} != *arm64* ]] || root=$arm_root program=/opt/pagekeeper run=$arm_tests
    SECONDS=0
    MACHINE_ROOT=$root scripts/machine.sh "${kernel[$1]}" "$memory" "${MACHINE_SECONDS:-3600}" PAGEKEEPER="$program" UNIT_TESTS="$run" STORIES="${STORIES:-}" \
        "$PWD/scripts/kernels-guest.sh" "${mode[$1]}" || status=1
    echo "$1: $SECONDS s"
    return "$status"
}

# Waits for the next machine to end, prints its output, and adds its kernel's features to the table.
finish() {
    local pid name ended=0
    wait -n -p pid "${!running[@]}" || ended=1 status=1
    name=${running[$pid]}
    unset "running[$pid]"
    echo "$name, Linux $(cat "${kernel[$name]}/release")"
    # shellcheck disable=SC2086
    python3 scripts/kernels-table.py $compare docs/src/kernels.md "${suite[$name]}" "${flavour[$name]}" "$(cat "${kernel[$name]}/release")" \
        "$logs/$name" >"$logs/table" || {
        echo "test kernels::the_table_is_true_of_$name ... FAILED"
        echo "test result: FAILED. 0 passed; 1 failed"
    } >>"$logs/table"
    cat "$logs/table" >>"$logs/$name"
    rm "$logs/table"
    cat "$logs/$name"
    if [ "$ended" -ne 0 ] || grep -q '^test result: FAILED' "$logs/$name"; then
        return
    fi
    # Counts each kernel once, even if several machines have it.
    [ "${mode[$name]}" != tour ] || passed["$(cat "${kernel[$name]}/machine") $(cat "${kernel[$name]}/release")"]=1
}

# passed_on MACHINE: prints the number of kernels of that architecture (as in `uname -m`) on which the tour passed.
passed_on() {
    printf '%s\n' "${!passed[@]}" | grep -c "^$1 " || true
}

# The requirement on the whole run.
enough_kernels() {
    local x86 arm
    x86=$(passed_on x86_64) arm=$(passed_on aarch64)
    if [ "$x86" -ge 5 ] && [ "$arm" -ge 1 ]; then
        printf 'test kernels::five_of_x86_64_and_one_of_aarch64 ... ok\ntest result: ok. 1 passed; 0 failed\n'
    else
        echo "passed on $x86 kernels of x86-64, not five, or on $arm of aarch64, not one"
        printf 'test kernels::five_of_x86_64_and_one_of_aarch64 ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n'
    fi
}

for name in "$@"; do
    prepare "$name" || continue
    [ "${#running[@]}" -lt "${MACHINES:-2}" ] || finish
    echo "$name: starts"
    boot "$name" >"$logs/$name" 2>&1 &
    running[$!]=$name
done
while [ "${#running[@]}" -gt 0 ]; do
    finish
done
[ -z "$whole" ] || enough_kernels | tee "$logs/enough"
cat "$logs"/* >"$logs/all"
scripts/count-tests.sh "$logs/all" "$status"
