#!/usr/bin/env bash
# Packages of a suite of Debian or Ubuntu and all they depend on, the C library included, unpacked into one folder:
#   scripts/unpack-suite.sh FOLDER debian|ubuntu SUITE PACKAGE...
# They are fetched by an apt of its own, with lists, cache and a record of installed packages beside the folder. The
# system is not touched. The folder's programs are started by its own dynamic linker:
#   FOLDER/usr/lib/*/ld-linux-*.so.* --library-path FOLDER/usr/lib/<triplet> FOLDER/usr/sbin/mysqld
# or, as root, by `chroot FOLDER`. Mirrors are as scripts/own-apt.sh finds them.
set -euo pipefail
root=$1 of=$2 suite=$3
shift 3
. "$(dirname "$0")/own-apt.sh"

lists=$root.apt unpacked=$root.unpacked keys=$root.keys
# One at a time: two would write into the same lists.
mkdir -p "$(dirname "$root")"
exec {lock}>"$root.lock"
flock "$lock"
rm -rf "$lists" "$unpacked" "$keys"
trap 'rm -rf "$lists" "$unpacked" "$keys"' EXIT
mkdir -p "$unpacked"
case $of in
debian)
    mirror=$(debian_mirror)
    echo "Fetching $* from $mirror ($suite)"
    own_apt "$lists" "$mirror $suite"
    ;;
ubuntu)
    mirror=$(ubuntu_mirror)
    echo "Fetching $* from $mirror ($suite)"
    fetch_ubuntu_keys "$keys"
    OWN_APT_KEYS=$ubuntu_keys OWN_APT_COMPONENTS="main universe" own_apt "$lists" "$mirror $suite $suite-updates"
    ;;
*)
    echo "unpack-suite.sh: \"$of\" is neither debian nor ubuntu" >&2
    exit 2
    ;;
esac
unpack_packages "$unpacked" "$@"
rm -rf "$root"
mv "$unpacked" "$root"
