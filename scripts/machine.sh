#!/usr/bin/env bash
# machine.sh KERNEL MEMORY SECONDS [NAME=VALUE...] COMMAND [ARG...] — runs a command as the first process of a QEMU
# virtual machine, and prints its output from "guest: begins" on.
#
# KERNEL is a folder made by scripts/fetch-kernel.sh. The machine has this system's root, or the folder MACHINE_ROOT,
# read-only below a layer in memory; the sources, in the same way; its own disk at /var/tmp for the tests' files; and no
# network. It ends with the kernel (`ends` in scripts/guest.sh), or after SECONDS. QEMU_ACCEL=kvm is faster where it is
# available. Fails if the command did not finish.
set -euo pipefail
cd "$(dirname "$0")/.."
kernel=$1 memory=$2 seconds=$3
shift 3
root=${MACHINE_ROOT:-/}

case $(cat "$kernel/machine" 2>/dev/null) in
    aarch64)
        console=ttyAMA0
        busybox=$root/bin/busybox
        # Full pointer authentication would dominate the cost of emulation.
        processor=(qemu-system-aarch64 -machine virt -cpu "max,pauth-impdef=on")
        ;;
    *)
        # On a busy host the guest misses ticks, and the kernel would distrust its timer.
        console="ttyS0 no_timer_check"
        busybox=$(command -v busybox)
        processor=(qemu-system-x86_64 -cpu max)
        ;;
esac

# Emulated with a second processor, the guest may hit a breakpoint of a tracepoint's code patching after its
# removal, and then the kernel panics.
processors=2
[ "${QEMU_ACCEL:=tcg}" != tcg ] || processors=1

work=$(mktemp --directory "$kernel/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p target/test-files "$work"/root/{bin,proc,sys,dev,lower,up,new,sources}
cp "$busybox" "$work/root/bin/busybox"
cp -r "$kernel/modules" "$work/root/"
cat >"$work/root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/\$module"; done </modules/list
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose host /lower
mount -t tmpfs up /up; mkdir /up/upper /up/work /up/sources /up/sources-work
mount -t overlay -o "lowerdir=/lower$root,upperdir=/up/upper,workdir=/up/work" root /new
mount -t overlay -o "lowerdir=/lower$PWD,upperdir=/up/sources,workdir=/up/sources-work" sources /sources
mkdir -p /new/proc /new/sys /new/dev /new/tmp /new/var/tmp
mount -t ext4 /dev/vda /new/var/tmp; chmod 1777 /new/var/tmp
mkdir -p /new/var/tmp/test-files "/new$PWD"
mount --move /sources "/new$PWD"
mount --bind /new/var/tmp/test-files "/new$PWD/target/test-files"
mount --move /proc /new/proc; mount --move /sys /new/sys; mount --move /dev /new/dev
exec switch_root /new /usr/bin/env SOURCE=$(printf %q "$PWD")$(printf ' %q' "$@")
END
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio --create --format=newc --quiet | gzip -1) >"$work/initrd"
truncate --size 6G "$work/disk"
mkfs.ext4 -q "$work/disk"

# Runs in the foreground, in this process group, and so ends with the group.
timeout --foreground "$seconds" "${processor[@]}" -accel "$QEMU_ACCEL" -m "$memory" -smp "$processors" -nographic -no-reboot -nic none \
    -kernel "$kernel/vmlinuz" -initrd "$work/initrd" -append "console=$console nosoftlockup quiet panic=-1" \
    -drive "file=$work/disk,format=raw,if=virtio,cache=none" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap </dev/null 2>&1 |
    sed --unbuffered --regexp-extended 's/\r|\x1b(\[[0-9;?]*)?[a-zA-Z]//g; s/^.*(guest: begins)/\1/' | tee "$work/log" | sed --unbuffered --quiet '/^guest: begins/,$p' || true
if ! grep -q "^guest: ends" "$work/log"; then
    tail -n 30 "$work/log" >&2
    echo "the machine did not finish" >&2
    exit 1
fi
