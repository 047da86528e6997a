#!/usr/bin/env bash
# Memory cgroups of version 2, in three virtual machines: the tests of groups of `pagekeeper run` where this process is in the topmost
# group; systemd with a login's scope, a user's scope and services, as scripts/cgroup-v2-guest.sh has them; and the guard with
# [cgroup], beside PostgreSQL too.
#
# The machines have Debian's kernel (LINUX_IMAGE=PACKAGE names another than this Debian's own), this system's root as it is, read only
# below a layer in memory, and a disk of their own at /var/tmp. QEMU_ACCEL=kvm is faster, where that can be had. Takes some minutes
# with it, and half an hour without. For x86-64, as root. Arguments are the machines: topmost, systemd, guard.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh \
    "the virtual machines: qemu-system-x86 busybox-static kmod cpio e2fsprogs" \
    "systemd in them: systemd dbus dbus-user-session libpam-systemd" \
    "the server in them: postgresql" \
    "the programs in the groups: util-linux-extra musl-tools sudo fio restic"
[ "$(id -u)" -eq 0 ] || { echo "make test-cgroup-v2 reads this system's whole root: run it as root." >&2; exit 1; }

base=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/cgroup-v2
image=${LINUX_IMAGE:-$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')}
kernel=$base/$image
if [ ! -d "$kernel" ]; then
    mkdir -p "$base/fetched"
    (cd "$base/fetched" && apt-get download "$image")
    dpkg --extract "$base/fetched/$image"_*.deb "$kernel.unpacked"
    rm -r "$base/fetched"
    mv "$kernel.unpacked" "$kernel"
fi
release=$(basename "$kernel"/lib/modules/*)
depmod --basedir "$kernel" "$release"

built=$("$cargo" test --package pagekeeper --test preload --test host --no-run --message-format=json)
tests=$(grep -o '"executable":"[^"]*/preload-[^"]*"' <<<"$built" | tail -1 | cut -d'"' -f4)
host=$(grep -o '"executable":"[^"]*/host-[^"]*"' <<<"$built" | tail -1 | cut -d'"' -f4)
kernel_tests=$("$cargo" test --package pagekeeper-kernel --lib --no-run --message-format=json |
    grep -o '"executable":"[^"]*/pagekeeper_kernel-[^"]*"' | tail -1 | cut -d'"' -f4)
pagekeeper=$(grep -o '"executable":"[^"]*/pagekeeper"' <<<"$built" | tail -1 | cut -d'"' -f4)

work=$(mktemp --directory "$base/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/root/{bin,modules,proc,sys,dev,lower,up,new}
cp "$(command -v busybox)" "$work/root/bin/"
for module in virtio_pci virtio_blk 9pnet_virtio 9p overlay ext4 loop; do
    modprobe --dirname "$kernel" --set-version "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    cp "$file" "$work/root/modules/"
    basename "$file" >>"$work/root/modules/list"
done
cat >"$work/root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/\$module"; done </modules/list
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose host /lower
mount -t tmpfs up /up; mkdir /up/upper /up/work
mount -t overlay -o lowerdir=/lower,upperdir=/up/upper,workdir=/up/work root /new
mount -t ext4 /dev/vda /new/var/tmp; chmod 1777 /new/var/tmp
# The sources may be below it.
mkdir -p "/new$PWD"; mount --bind "/lower$PWD" "/new$PWD"
export PAGEKEEPER="$pagekeeper" TESTS="$tests" HOST="$host" KERNEL="$kernel_tests" SOURCE="$PWD"
mount --move /proc /new/proc; mount --move /sys /new/sys; mount --move /dev /new/dev
exec switch_root /new "$PWD/scripts/cgroup-v2-guest.sh" \$(sed 's/.*guest=//; s/ .*//' /new/proc/cmdline)
END
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio --create --format=newc --quiet | gzip -1) >"$work/initrd"

boot() {
    rm -f "$work/disk"
    truncate --size 6G "$work/disk"
    mkfs.ext4 -q "$work/disk"
    timeout 2400 qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg,thread=multi}" -cpu max -m 3G -smp 2 -nographic -no-reboot \
        -kernel "$kernel/boot/vmlinuz-$release" -initrd "$work/initrd" -append "console=ttyS0 loglevel=6 panic=-1 guest=$1" \
        -drive "file=$work/disk,format=raw,if=virtio,cache=none" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap </dev/null 2>&1 |
        sed --unbuffered 's/\r//g'
}

status=0
[ $# -gt 0 ] || set -- topmost systemd guard
for machine in "$@"; do
    echo "$machine, $(basename "$kernel")"
    boot "$machine" | tee "$work/$machine.log"
    grep -q "^guest: ends" "$work/$machine.log" || { echo "the machine did not come to its end" >&2; status=1; }
done
cat "$work"/*.log >"$work/all"
scripts/count-tests.sh "$work/all" "$status"
