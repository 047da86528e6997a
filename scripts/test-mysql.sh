#!/usr/bin/env bash
# The guard beside MySQL 9. Debian carries MySQL only in unstable, so its packages and all they depend on, the C library
# included, are fetched from there by an apt of its own (with lists, cache and a record of installed packages in the
# target directory) and unpacked into one folder. The system is not touched. The folder's programs are started by its
# own dynamic linker:
#   ROOT/usr/lib/*/ld-linux-*.so.* --library-path ROOT/usr/lib/<triplet> ROOT/usr/sbin/mysqld
# or, as root, by `chroot ROOT`. DEBIAN_MIRROR overrides the mirror that this machine's apt is set up for.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the load and its measurement: sysbench mariadb-client util-linux-extra"

base=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/mysql
root=$base/root

debian_mirror() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-unstable}")
    apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="^($codename|stable|testing|unstable|sid)\$" '$1 ~ release && $2 == "main" { print $3; exit }'
}

fetch() {
    local mirror=${DEBIAN_MIRROR:-$(debian_mirror)}
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian mirror here: DEBIAN_MIRROR=http://HOST/debian make test-mysql names one." >&2
        exit 1
    fi
    local apt=$base/apt unpacked=$base/unpacked keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    rm -rf "$apt" "$unpacked"
    mkdir -p "$apt"/{lists,archives}/partial "$unpacked"
    : >"$apt/status"
    echo "deb [signed-by=$keyring] $mirror unstable main" >"$apt/sources.list"
    local options=(
        -o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::State::lists=$apt/lists"
        -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives"
        -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
        -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
    )
    echo "Fetching MySQL from $mirror (unstable)"
    apt-get "${options[@]}" --quiet=2 update
    apt-get "${options[@]}" --quiet=2 --yes --download-only --no-install-recommends install \
        mysql-server-core mysql-client-core </dev/null
    local package
    for package in "$apt"/archives/*.deb; do
        dpkg --extract "$package" "$unpacked"
    done
    # So that a chroot finds the dynamic linker and the shell at their old places.
    local directory
    for directory in bin sbin lib lib64; do
        [ ! -d "$unpacked/usr/$directory" ] || ln -sfn "usr/$directory" "$unpacked/$directory"
    done
    rm -rf "$apt" "$root"
    mv "$unpacked" "$root"
}

[ -x "$root/usr/sbin/mysqld" ] || fetch
linker=$(echo "$root"/usr/lib/*/ld-linux-*.so.*)
"$linker" --library-path "$(dirname "$linker")" "$root/usr/sbin/mysqld" --version

export PAGEKEEPER_MYSQL_ROOT=$root
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test databases -- mysql:: --ignored --show-output 2>&1 | tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
