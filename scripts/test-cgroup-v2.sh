#!/usr/bin/env bash
# test-cgroup-v2.sh [MACHINE...] — tests memory cgroups of version 2 in virtual machines:
#   guard       the guard with [cgroup], also beside PostgreSQL and MariaDB
#   unit        the Debian package and the rpm under a real systemd, their service with each drop-in, a MariaDB under `pagekeeper run`, and
#               the image started as the manual shows (scripts/unit-guest.sh)
#   containers  podman containers beside the guard, and with the guard in one, as in the Kubernetes manifest
#
# The machines have Debian's kernel (SUITE=NAME for another suite) and this system's root (scripts/machine.sh). Takes
# some minutes with QEMU_ACCEL=kvm, and more than an hour without. For x86-64, as root.
#
# SENPAI=PATH runs `guard` also beside Meta's senpai.py, which is not part of this project; further words in SENPAI are
# its arguments. Without it, that story is left out. STORIES=WORDS limits `guard` and `containers` to tests whose name
# contains one of these words, such as STORIES=senpai.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/require-rust.sh
scripts/packages.sh \
    "the virtual machines: qemu-system-x86 busybox-static kmod cpio e2fsprogs xz-utils" \
    "systemd in them: systemd dbus dbus-user-session libpam-systemd" \
    "the servers in them: postgresql mariadb-server mariadb-backup" \
    "the container engine in them, and what reads the manifest: podman crun python3-yaml libcap2-bin" \
    "the packages that are installed in them: debhelper dpkg-dev lintian binutils rpm rpmlint" \
    "the comparison of the doctor's reports with their schema: python3-jsonschema" \
    "what counts pages in them: util-linux-extra"
[ "$(id -u)" -eq 0 ] || { echo "make test-cgroup-v2 reads this system's whole root: run it as root." >&2; exit 1; }

kernel=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/kernels/${SUITE:=$(. /etc/os-release && echo "$VERSION_CODENAME")}-amd64
mkdir -p "$(dirname "$kernel")"
scripts/fetch-kernel.sh "$SUITE" amd64 "$kernel"

# Builds all tests, as `make test` does: fewer would select other features, and dependencies would be built again.
built=$(scripts/test-programs.sh --workspace)
program() { # the end of its path
    grep -E "/$1$" <<<"$built" | tail -1
}
host=$(program 'host-[0-9a-f]+')
kernel_tests=$(program 'pagekeeper_kernel-[0-9a-f]+')
pagekeeper=$(program pagekeeper)

[ $# -gt 0 ] || set -- guard unit containers
logs=$(mktemp --directory)
copy=$(dirname "$kernel")/senpai.py
trap 'rm -rf "$logs" "$copy"' EXIT
status=0

# Packages for the machines only, with the tests' program (or PROGRAM); `make packages` builds the real ones.
packages=$(dirname "$kernel")/packages
if [[ " $* " == *" unit "* ]]; then
    strip -o "$logs/program" "${PROGRAM:-$pagekeeper}"
    PROGRAM=$logs/program RUNS_HERE=$logs/program DESTDIR=$logs/root PREFIX=/usr scripts/install.sh >/dev/null
    install -D --mode 644 deploy/guard.toml "$logs/root/etc/pagekeeper/guard.toml"
    install -D --mode 644 deploy/debian/default "$logs/root/etc/default/pagekeeper"
    mkdir -p "$logs/out" "$packages"
    export SOURCE_DATE_EPOCH PACKAGE_VERSION=0.0.1 PACKAGE_REVISION=1 DEBFULLNAME=Tests DEBEMAIL=root@localhost
    SOURCE_DATE_EPOCH=$(date +%s)
    packaged() { # the script, its architecture, and what the package is called
        "scripts/packaging/$1.sh" "$2" "$logs/root" LICENSE-MIT "$logs/out" >"$logs/packaging" 2>&1 || { cat "$logs/packaging" >&2; exit 1; }
        mv "$logs/out"/* "$packages/$3"
    }
    packaged deb amd64 pagekeeper.deb
    packaged rpm x86_64 pagekeeper.rpm
    export PACKAGE_REVISION=2
    packaged deb amd64 higher.deb
    packaged rpm x86_64 higher.rpm
    # Static as in the image, except for the library that `run` preloads.
    musl=x86_64-unknown-linux-musl
    rustup target list --installed | grep --quiet "^$musl\$" || rustup --quiet target add "$musl"
    CARGO_ENCODED_RUSTFLAGS=$'-Clinker=rust-lld\x1f-Clinker-flavor=ld.lld' "${CARGO:-cargo}" build --quiet --profile test --package pagekeeper \
        --target "$musl" --target-dir "$(dirname "$kernel")/build"
    install -D --mode 755 --strip "$(dirname "$kernel")/build/$musl/debug/pagekeeper" "$logs/image/usr/bin/pagekeeper"
    install -D --mode 644 deploy/guard.toml "$logs/image/etc/pagekeeper/guard.toml"
    scripts/packaging/image.py "$packages/image.tar" "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)" "amd64=$logs/image"
    rm -r "$logs"/{program,root,out,packaging,image}
fi
# A machine has its own disk at /var/tmp.
senpai=""
if [ -n "${SENPAI:-}" ]; then
    read -r senpai arguments <<<"$SENPAI"
    cp -- "$senpai" "$copy"
    senpai="$copy $arguments"
fi
for machine in "$@"; do
    echo "$machine, Linux $(cat "$kernel/release")"
    scripts/machine.sh "$kernel" 3G $((${senpai:+1800 +} 3600)) PAGEKEEPER="$pagekeeper" PACKAGES="$packages" HOST="$host" \
        KERNEL_TESTS="$kernel_tests" SENPAI="$senpai" STORIES="${STORIES:-}" "$PWD/scripts/cgroup-v2-guest.sh" "$machine" |
        tee "$logs/$machine" || status=1
done
cat "$logs"/* >"$logs/all"
scripts/count-tests.sh "$logs/all" "$status"
