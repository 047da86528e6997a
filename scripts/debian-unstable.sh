#!/usr/bin/env bash
# Packages of Debian unstable and all they depend on, the C library included, unpacked into one folder:
#   scripts/debian-unstable.sh FOLDER PACKAGE...
# They are fetched by an apt of its own, with lists, cache and a record of installed packages beside the folder. The
# system is not touched. The folder's programs are started by its own dynamic linker:
#   FOLDER/usr/lib/*/ld-linux-*.so.* --library-path FOLDER/usr/lib/<triplet> FOLDER/usr/sbin/mysqld
# or, as root, by `chroot FOLDER`. DEBIAN_MIRROR overrides the mirror that this machine's apt is set up for.
set -euo pipefail
root=$1
shift
. "$(dirname "$0")/own-apt.sh"

mirror=$(debian_mirror)
lists=$root.apt unpacked=$root.unpacked
rm -rf "$lists" "$unpacked"
mkdir -p "$unpacked"
echo "Fetching $* from $mirror (unstable)"
own_apt "$lists" "$mirror unstable"
unpack_packages "$unpacked" "$@"
rm -rf "$lists" "$root"
mv "$unpacked" "$root"
