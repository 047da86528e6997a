#!/usr/bin/env bash
# fetch-kernel.sh SUITE FLAVOUR FOLDER — fetches the newest kernel of a Debian or Ubuntu suite, and the modules that a
# virtual machine needs.
#
# FLAVOUR is the end of the package linux-image-FLAVOUR that depends on the newest image: amd64, arm64, arm64-16k or, on
# Ubuntu, virtual. FOLDER gets vmlinuz, release, package, machine (as printed by `uname -m`) and modules/ with a list in
# loading order. An existing kernel is kept unless the suite has a newer one. scripts/own-apt.sh chooses the mirrors.
# Signatures are checked.
#
# Frozen and old suites are allowed: their lists have expired, but Debian's signature is still checked.
set -euo pipefail
# Frozen suites have expired lists.
OWN_APT_EXPIRED=1
suite=$1 flavour=$2 folder=$(realpath --canonicalize-missing "$3")
. "$(dirname "$0")/own-apt.sh"

case $flavour in
    *arm64*) machine=aarch64 architecture=arm64 ;;
    *) machine=x86_64 architecture=amd64 ;;
esac
lists=$folder.apt unpacked=$folder.unpacked
# One at a time: two would write into the same lists.
mkdir -p "$(dirname "$folder")"
exec {lock}>"$folder.lock"
flock "$lock"
trap 'rm -rf "$lists" "$unpacked" "$folder.keys"' EXIT
rm -rf "$lists" "$unpacked" "$folder.keys"
case $flavour in
    virtual | generic*)
        mirror=$(ubuntu_mirror "$architecture")
        { fetch_ubuntu_keys "$folder.keys" && OWN_APT_KEYS=$ubuntu_keys own_apt "$lists" "$mirror $suite-updates" "$architecture"; } || [ -e "$folder/package" ]
        ;;
    *) own_apt "$lists" "$(debian_mirror) $suite" "$architecture" || [ -e "$folder/package" ] ;;
esac
# The image, and the packages that hold its modules: not the tools that would install it.
packages=$(apt-cache "${apt[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    "linux-image-$flavour" | grep -oE '^linux-(image|binary|base|modules)-[^ ]*[0-9]\.[0-9][^ ]*' | sort -u | tr '\n' ' ') || packages=""
if [ -z "$packages" ]; then
    if [ -e "$folder/package" ]; then
        echo "$suite: its lists can't be fetched; using the kernel fetched earlier" >&2
        exit 0
    fi
    echo "$suite: there is no linux-image-$flavour" >&2
    exit 1
fi
if [ "$(cat "$folder/package" 2>/dev/null)" = "$packages" ]; then
    exit 0
fi
mkdir -p "$unpacked"
(cd "$unpacked" && apt-get "${apt[@]}" --quiet=2 download $packages)
for package in "$unpacked"/*.deb; do
    dpkg --extract "$package" "$unpacked"
    rm "$package"
done
rm -rf "$folder"
mkdir -p "$folder/modules"
[ -d "$unpacked/lib/modules" ] || ln -s usr/lib "$unpacked/lib"
release=$(basename "$unpacked"/lib/modules/*)
depmod --basedir "$unpacked" "$release"
for image in "$unpacked/boot/vmlinuz-$release" "$unpacked/lib/modules/$release/vmlinuz"; do
    [ ! -e "$image" ] || cp "$image" "$folder/vmlinuz"
done
for module in virtio_pci virtio_blk 9pnet_virtio 9p overlay ext4 loop xfs quota_v2; do
    # Some kernels come without quotas.
    modprobe --dirname "$unpacked" --set-version "$release" --show-depends "$module" || [ "$module" = quota_v2 ]
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    name=$(basename "$file" | sed -E 's/\.(xz|zst|gz)$//')
    case $file in
        *.xz) xz --decompress --stdout "$file" ;;
        *.zst) zstd --quiet --decompress --stdout "$file" ;;
        *.gz) gzip --decompress --stdout "$file" ;;
        *) cat "$file" ;;
    esac >"$folder/modules/$name"
    echo "$name" >>"$folder/modules/list"
done
echo "$release" >"$folder/release"
echo "$machine" >"$folder/machine"
printf %s "$packages" >"$folder/package"
