#!/usr/bin/env bash
# arm64-root.sh FOLDER — unpacks an arm64 root from Debian's packages of this system's suite, for the machines of
# scripts/kernels-guest.sh.
#
# Runs nothing of the root here, and leaves existing files alone. FOLDER/opt is for the programs under test.
set -euo pipefail
folder=$1
. "$(dirname "$0")/own-apt.sh"

[ ! -d "$folder" ] || exit 0
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
trap 'rm -rf "$folder.new" "$folder.apt"' EXIT
rm -rf "$folder.new" "$folder.apt"
mkdir -p "$folder.new/opt"
own_apt "$folder.apt" "$(debian_mirror) $suite" arm64
unpack_packages "$folder.new" bash dash coreutils util-linux util-linux-extra mount iproute2 procps grep sed diffutils libc-bin \
    busybox-static python3-minimal libpython3-stdlib libgcc-s1 xfsprogs
# The files that an installation of the packages would create.
echo 'root:x:0:0:root:/root:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin' >"$folder.new/etc/passwd"
echo 'root:x:0:
nogroup:x:65534:' >"$folder.new/etc/group"
mv "$folder.new" "$folder"
