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

debian_mirror() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-unstable}")
    apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="^($codename|stable|testing|unstable|sid)\$" '$1 ~ release && $2 == "main" { print $3; exit }'
}

mirror=${DEBIAN_MIRROR:-$(debian_mirror)}
if [ -z "$mirror" ]; then
    echo "apt knows no Debian mirror here: DEBIAN_MIRROR=http://HOST/debian in the environment names one." >&2
    exit 1
fi
apt=$root.apt unpacked=$root.unpacked keyring=/usr/share/keyrings/debian-archive-keyring.gpg
rm -rf "$apt" "$unpacked"
mkdir -p "$apt"/{lists,archives}/partial "$unpacked"
: >"$apt/status"
echo "deb [signed-by=$keyring] $mirror unstable main" >"$apt/sources.list"
options=(
    -o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives"
    -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
)
echo "Fetching $* from $mirror (unstable)"
apt-get "${options[@]}" --quiet=2 update
apt-get "${options[@]}" --quiet=2 --yes --download-only --no-install-recommends install "$@" </dev/null
for package in "$apt"/archives/*.deb; do
    dpkg --extract "$package" "$unpacked"
done
# So that a chroot finds the dynamic linker and the shell at their old places.
for directory in bin sbin lib lib64; do
    [ ! -d "$unpacked/usr/$directory" ] || ln -sfn "usr/$directory" "$unpacked/$directory"
done
rm -rf "$apt" "$root"
mv "$unpacked" "$root"
