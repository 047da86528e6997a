#!/usr/bin/env bash
# Memory cgroups of version 2, in three virtual machines: the tests of groups of `pagekeeper run` where this process is in the topmost
# group; systemd with a login's scope, a user's scope and services, as scripts/cgroup-v2-guest.sh has them; and the guard with
# [cgroup], beside PostgreSQL too.
#
# The machines have Debian's kernel (SUITE=NAME: of another suite than this Debian's own) and this system's root (scripts/machine.sh).
# Takes some minutes where QEMU_ACCEL=kvm can be had, and half an hour without. For x86-64, as root. Arguments are the machines:
# topmost, systemd, guard.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the virtual machines: qemu-system-x86 busybox-static kmod cpio e2fsprogs xz-utils" \
    "systemd in them: systemd dbus dbus-user-session libpam-systemd" \
    "the server in them: postgresql" \
    "the programs in the groups: util-linux-extra musl-tools sudo fio restic"
[ "$(id -u)" -eq 0 ] || { echo "make test-cgroup-v2 reads this system's whole root: run it as root." >&2; exit 1; }

kernel=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/kernels/${SUITE:=$(. /etc/os-release && echo "$VERSION_CODENAME")}-amd64
mkdir -p "$(dirname "$kernel")"
scripts/fetch-kernel.sh "$SUITE" amd64 "$kernel"

built=$("$cargo" test --package pagekeeper --test preload --test host --no-run --message-format=json)
tests=$(grep -o '"executable":"[^"]*/preload-[^"]*"' <<<"$built" | tail -1 | cut -d'"' -f4)
host=$(grep -o '"executable":"[^"]*/host-[^"]*"' <<<"$built" | tail -1 | cut -d'"' -f4)
kernel_tests=$("$cargo" test --package pagekeeper-kernel --lib --no-run --message-format=json |
    grep -o '"executable":"[^"]*/pagekeeper_kernel-[^"]*"' | tail -1 | cut -d'"' -f4)
pagekeeper=$(grep -o '"executable":"[^"]*/pagekeeper"' <<<"$built" | tail -1 | cut -d'"' -f4)

logs=$(mktemp --directory)
trap 'rm -rf "$logs"' EXIT
status=0
[ $# -gt 0 ] || set -- topmost systemd guard
for machine in "$@"; do
    echo "$machine, Linux $(cat "$kernel/release")"
    scripts/machine.sh "$kernel" 3G 2400 PAGEKEEPER="$pagekeeper" TESTS="$tests" HOST="$host" \
        KERNEL_TESTS="$kernel_tests" "$PWD/scripts/cgroup-v2-guest.sh" "$machine" |
        tee "$logs/$machine" || status=1
done
cat "$logs"/* >"$logs/all"
scripts/count-tests.sh "$logs/all" "$status"
