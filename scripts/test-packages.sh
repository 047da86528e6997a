#!/usr/bin/env bash
# Tests the packages as users meet them: builds twice, in two places, and compares the bytes; installs the Debian
# package and the rpm in a clean Debian of this machine's release, uses, upgrades, removes and purges them; and runs the
# static program and the image in empty roots. Architectures as for scripts/build-packages.sh. As root. Takes a quarter
# of an hour for the second build, and minutes for the clean Debian, which is kept for later runs
# (target/packages-test/debian-CODENAME.tar).
#
# Not tested: the packages' scripts beside a running systemd (reload, stop, restart). Packages for another processor are
# not installed; their programs run under qemu-user. A missing tool is a failure, or with PAGEKEEPER_REQUIRE_ALL=0 only
# named.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
test=$target/packages-test

if [ "$(id -u)" -ne 0 ]; then
    echo "A package is installed into a Debian of its own, by chroot: run this as root" >&2
    exit 1
fi
export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
scripts/packages.sh "a clean Debian: mmdebstrap" || echo "mmdebstrap could not be installed" >&2
scripts/packages.sh "units: systemd"
# Installs this machine's own architecture.
own=$(dpkg --print-architecture) machine=$(uname --machine)
architectures=("$@")
[ $# -eq 0 ] || [[ " $* " == *" $own "* ]] || architectures=("$own" "$@")
# The same date for both builds, even if a commit comes in between.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
mkdir -p "$test"
root=$test/root
discard() {
    rm -rf "$root" "$test/elsewhere" "$test/target" "$test/higher" "$test/programs" "$test"/*.new
}
trap discard EXIT
discard

fail() {
    echo "test-packages: $*" >&2
    exit 1
}

# --- Build twice.
packages=$target/packages
scripts/build-packages.sh "${architectures[@]}"
# The same programs in packages of a higher revision with another configuration, for the upgrade.
mkdir -p "$test/programs/$own" "$test/higher"
dpkg-deb --fsys-tarfile "$packages"/pagekeeper_*_"$own".deb | tar --extract --to-stdout ./usr/bin/pagekeeper >"$test/programs/$own/pagekeeper"
chmod 755 "$test/programs/$own/pagekeeper"
# Checks that the check of the needed glibc can fail: for a newer glibc, and where no version is found.
program=$test/programs/$own/pagekeeper
scripts/packaging/check-glibc.sh 2.28 "$program" >/dev/null || fail "the program needs more than glibc 2.28"
glibc_refused() { # glibc_refused WHY OLDEST FILE
    local said
    said=$(scripts/packaging/check-glibc.sh "$2" "$3" 2>&1) && fail "check-glibc.sh accepts $3, but should print: $1"
    grep --quiet "$1" <<<"$said" || fail "check-glibc.sh does not print \"$1\" for $3: $said"
}
glibc_refused "needs glibc" 2.2 "$program"
objcopy --remove-section=.gnu.version_r "$program" "$test/programs/unversioned"
glibc_refused "names no version" 2.28 "$test/programs/unversioned"
rm "$test/programs/unversioned"
cp "$program" "$test/programs/$own/pagekeeper-static"
ln --symbolic "$target/tools" "$test/programs/tools"
{ cat deploy/guard.toml && echo '# of the next release'; } >"$test/programs/guard.toml"
GUARD_TOML=$test/programs/guard.toml PROGRAMS=$test/programs CARGO_TARGET_DIR=$test/programs PACKAGE_REVISION=2 scripts/build-packages.sh "$own" >/dev/null
mv "$test/programs"/packages/pagekeeper_*.deb "$test/programs"/packages/*.rpm "$test/higher/"
rm -rf "$test/programs"
(cd "$packages" && sha256sum --check --quiet SHA256SUMS)
[ "$(cut -c 67- "$packages/SHA256SUMS" | sort)" = "$(cd "$packages" && find . -type f -not -name SHA256SUMS -printf '%P\n' | sort)" ] || fail "SHA256SUMS does not list all packages"
package=$(compgen -G "$packages/pagekeeper_*_$own.deb") higher=$(compgen -G "$test/higher/*.deb")

mkdir "$test/elsewhere"
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- | tar --extract --directory "$test/elsewhere"
# Shares only tools, which are not part of the result; zig's cache is not shared.
mkdir -p "$test/target/tools"
find "$target/tools" -mindepth 1 -maxdepth 1 -not -name zig-cache -exec ln --symbolic --target-directory "$test/target/tools" {} +
CARGO_TARGET_DIR=$test/target \
    "$test/elsewhere/scripts/build-packages.sh" "${architectures[@]}" >/dev/null
diff "$packages/SHA256SUMS" "$test/target/packages/SHA256SUMS" || fail "two builds of one source differ: compare them with diffoscope"
echo "the same bytes from two places: $(wc -l <"$packages/SHA256SUMS") files"
rm -rf "$test/elsewhere" "$test/target"

scripts/packaging/test-formats.sh "$packages" "$machine" "$own"

# --- A clean Debian.
# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
clean=$test/debian-$codename.tar
if [ ! -e "$clean" ] && ! mmdebstrap --quiet --variant=minbase --format=tar "$codename" "$test/debian.tar.new"; then
    why="no clean Debian could be made by mmdebstrap --variant=minbase $codename"
    [ "$PAGEKEEPER_REQUIRE_ALL" = 0 ] || fail "$why"
    echo "SKIPPED: installing, upgrading and purging, as $why"
    exit 0
fi
[ -e "$clean" ] || mv "$test/debian.tar.new" "$clean"
mkdir "$root"
tar --extract --file "$clean" --directory "$root" --numeric-owner --xattrs

inside() {
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
install_package() {
    cp "$1" "$root/package.deb"
    # Like unattended upgrades: keeps the administrator's changes without asking.
    inside dpkg --force-confdef --force-confold --install /package.deb </dev/null >"$test/dpkg.log" 2>&1 || { cat "$test/dpkg.log" >&2 && fail "dpkg didn't install ${1##*/}"; }
    rm "$root/package.deb"
}
there() { # there FILE...: files of the package that aren't empty
    local file
    for file in "$@"; do
        [ -s "$root$file" ] || fail "$file is missing or empty"
    done
}
# Lists all files, except those of dpkg and the loader's cache.
files() {
    (cd "$root" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/log/*' -not -path './var/cache/*' | sort)
}
# Simulates the administrator's changes in both configuration files.
change_configuration() {
    echo '# set by the administrator' | tee --append "$root"/etc/{pagekeeper/guard.toml,default/pagekeeper} >/dev/null
}
kept_configuration() { # kept_configuration WHAT [SUFFIX]: after WHAT, under its own name and SUFFIX
    local file
    for file in "$root"/etc/{pagekeeper/guard.toml,default/pagekeeper}; do
        grep --quiet 'set by the administrator' "$file${2:-}" || fail "$1 took the changed ${file#"$root"} away"
    done
}
# The files that `run` leaves in each place it may choose, and files that others put there.
lay_out_libraries() {
    inside pagekeeper run --report -- cat /etc/pagekeeper/guard.toml >/dev/null 2>&1 || fail "pagekeeper run doesn't run"
    compgen -G "$root/run/pagekeeper/libpagekeeper-*.so" >/dev/null || fail "pagekeeper run laid out no library"
    # `run` itself may have made the first, for its report.
    mkdir -p "$root/tmp/pagekeeper-0" "$root/dev/shm/elsewhere"
    cp "$root"/run/pagekeeper/libpagekeeper-*.so "$root/tmp/pagekeeper-0/"
    cp "$root"/run/pagekeeper/libpagekeeper-*.so "$root/dev/shm/elsewhere/"
    ln --symbolic elsewhere "$root/dev/shm/pagekeeper-0"
}
# The directory for the link of `systemctl enable`.
wants=$root/etc/systemd/system/multi-user.target.wants
mkdir -p "$wants"
files >"$test/before"

# --- Install.
install_package "$package"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$(inside pagekeeper --version)" = "pagekeeper $version" ] || fail "pagekeeper --version says $(inside pagekeeper --version)"
inside pagekeeper demo --help | grep --quiet -- --duration || fail "pagekeeper demo --help says nothing of --duration"
# manual_pages LIST-OF-INSTALLED-FILES: checks that exactly the pages that the program writes are installed.
manual_pages() {
    inside mkdir /tmp/manuals
    inside pagekeeper man --dir /tmp/manuals || fail "pagekeeper man writes no pages"
    ls "$root/tmp/manuals" | sort >"$test/written"
    [ "$(wc -l <"$test/written")" -ge 20 ] || fail "pagekeeper man writes few pages: $(cat "$test/written")"
    sed -n 's|^/usr/share/man/man1/\(.*\)\.gz$|\1|p' "$1" | sort | diff "$test/written" - || fail "the installed pages (>) differ from those that the program writes (<)"
    rm -r "$root/tmp/manuals"
}
inside dpkg --listfiles pagekeeper >"$test/installed"
manual_pages "$test/installed"
there /usr/share/man/man5/pagekeeper-guard.toml.5.gz
gzip --decompress --stdout "$root/usr/share/man/man1/pagekeeper-guard.1.gz" | grep -- '--dry-run\|dry\\-run' >/dev/null || fail "pagekeeper-guard(1) is no man page of it"
inside bash -c '. /usr/share/bash-completion/completions/pagekeeper && complete -p pagekeeper' >/dev/null || fail "bash does not complete pagekeeper"
there /usr/share/zsh/vendor-completions/_pagekeeper /usr/share/fish/vendor_completions.d/pagekeeper.fish \
    /usr/share/doc/pagekeeper/{copyright,changelog.gz,changelog.Debian.gz,metrics.conf,troubleshooting.md,schemas/doctor.json,run/mariadb.conf,profiles/mariadb.toml}
unit=$(inside dpkg --listfiles pagekeeper | grep '/systemd/system/pagekeeper-guard.service$') || fail "the package has no unit"
grep --quiet '^ExecStart=/usr/bin/pagekeeper guard ' "$root$unit" || fail "the unit starts another program than the package's"
[ -z "$(inside find /etc/systemd/system -name 'pagekeeper*')" ] || fail "the service was enabled by being installed"
inside dpkg --verify pagekeeper | grep . && fail "installed files differ from the package's checksums"
[ "$(inside dpkg-query --show --showformat '${Conffiles}\n' pagekeeper | awk 'NF { print $1 }' | sort | paste -sd ' ')" = \
    "/etc/default/pagekeeper /etc/pagekeeper/guard.toml" ] || fail "files other than the configuration are marked as configuration files"

grep --quiet '^Files: crates/clap-' "$root/usr/share/doc/pagekeeper/copyright" || fail "the licences of what is linked in are not named"
# The score of systemd-analyze security, times ten.
systemd-analyze security --offline=true --threshold=25 --no-pager "$root$unit" >"$test/security" || fail "the unit's exposure exceeds 2.5: $(tail -n 1 "$test/security")"
# Uses this machine's systemd, since the clean Debian has none.
mkdir "$test/unit.new"
sed "s|/usr/bin/pagekeeper|$root/usr/bin/pagekeeper|" "$root$unit" >"$test/unit.new/pagekeeper-guard.service"
said=$(systemd-analyze verify --man=no "$test/unit.new/pagekeeper-guard.service" 2>&1) || fail "systemd finds fault with the unit: $said"
[ -z "$said" ] || fail "systemd finds fault with the unit: $said"
for template in snapshot@.service snapshot@.timer warm@.service restart@.service; do
    there "${unit%/*}/pagekeeper-$template"
    sed "s|/usr/bin/pagekeeper|$root/usr/bin/pagekeeper|" "$root${unit%/*}/pagekeeper-$template" >"$test/unit.new/pagekeeper-${template/@/@var-lib-mysql}"
done
said=$(systemd-analyze verify --man=no "$test"/unit.new/*@*.* 2>&1) || fail "systemd finds fault with the templates: $said"
[ -z "$said" ] || fail "systemd finds fault with the templates: $said"
tail -n 1 "$test/security"

# --- Upgrade: the administrator's changes stay.
ln --symbolic "$unit" "$wants/pagekeeper-guard.service"
change_configuration
install_package "$higher"
[ "$(inside dpkg-query --show --showformat '${Version}' pagekeeper)" = "$version-2" ] || fail "it was not upgraded"
kept_configuration "an upgrade"
grep --quiet 'of the next release' "$root/etc/pagekeeper/guard.toml.dpkg-dist" || fail "the configuration of the upgrade is not beside the changed one"
[ -L "$wants/pagekeeper-guard.service" ] || fail "an upgrade disabled the service"

# --- Remove and purge.
mkdir -p "$root/var/lib/pagekeeper/disks"
touch "$root/var/lib/pagekeeper/disks/8:1.toml" "$root/var/lib/pagekeeper/mysql.pks"
lay_out_libraries
inside dpkg --remove pagekeeper >/dev/null
kept_configuration removal
[ ! -e "$root/usr/bin/pagekeeper" ] || fail "removal left the program"
[ -e "$root/var/lib/pagekeeper/disks/8:1.toml" ] || fail "removal took saved disk profiles away"
inside dpkg --purge pagekeeper >/dev/null
[ -e "$root/var/lib/pagekeeper/mysql.pks" ] || fail "purge removed a snapshot that somebody saved"
compgen -G "$root/dev/shm/elsewhere/libpagekeeper-*.so" >/dev/null || fail "purge followed a link that anybody can make"
rm -r "$root/var/lib/pagekeeper/mysql.pks" "$root/dev/shm/elsewhere" "$root/dev/shm/pagekeeper-0"
rmdir "$root/var/lib/pagekeeper" || fail "purge left saved disk profiles"
files >"$test/after"
diff "$test/before" "$test/after" || fail "purge left (>) or removed (<) the files above"

echo "the Debian package: installed, upgraded, removed and purged in a clean Debian $codename"

# --- The libraries, but for RocksDB's file system, whose RocksDB the clean Debian lacks.
cp "$packages"/{libpagekeeper0,libpagekeeper-dev,pagekeeper-sqlite}_*_"$own".deb "$root/tmp/"
inside sh -c 'dpkg --install /tmp/*.deb' </dev/null >"$test/dpkg.log" 2>&1 || { cat "$test/dpkg.log" >&2 && fail "dpkg didn't install the libraries"; }
there /usr/include/pagekeeper.h /usr/lib/libpagekeeper.so.0 /usr/lib/libpagekeeper.a /usr/lib/pkgconfig/pagekeeper.pc /usr/lib/pagekeeper/pagekeeper_sqlite.so
inside ldconfig --print-cache | grep 'libpagekeeper.so.0 ' >/dev/null || fail "the loader does not find the C library"
inside dpkg --purge libpagekeeper-dev libpagekeeper0 pagekeeper-sqlite >/dev/null
rm "$root"/tmp/*.deb
files >"$test/after"
diff "$test/before" "$test/after" || fail "purge of the libraries left (>) or removed (<) the files above"
echo "the libraries: installed and purged"

# --- The rpm. rpm's database in a Debian root lists no packages, so requirements are compared here.
rpm=$(compgen -G "$packages/*.$machine.rpm")
newest=$(rpm --query --package --requires "$rpm" 2>/dev/null | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort --version-sort | tail -n 1)
[ -n "$newest" ] && [ "$(printf '%s\n2.28\n' "$newest" | sort --version-sort | tail -n 1)" = 2.28 ] || fail "the rpm requires glibc ${newest:-of no version}"
rpms() {
    rpm --root "$root" --dbpath /var/lib/rpm "$@"
}
mkdir -p "$root/var/lib/rpm"
rpms --initdb
files >"$test/before"
rpms --install --nodeps --force-debian "$rpm"
[ "$(inside pagekeeper -V)" = "pagekeeper $version" ] || fail "the rpm's pagekeeper doesn't run"
there /usr/share/doc/pagekeeper/{copyright,run/mariadb.conf,profiles/mariadb.toml}
rpms --query --list pagekeeper >"$test/installed"
manual_pages "$test/installed"
rpms --verify --nodeps pagekeeper || fail "installed files differ from the rpm's checksums"
[ -z "$(inside find /etc/systemd/system -name 'pagekeeper*')" ] || fail "the service was enabled by being installed"
change_configuration
rpms --upgrade --nodeps --force-debian "$(compgen -G "$test/higher/*.rpm")"
[ "$(rpms --query --queryformat '%{VERSION}-%{RELEASE}' pagekeeper)" = "$version-2" ] || fail "the rpm was not upgraded"
kept_configuration "an upgrade of the rpm"
grep --quiet 'of the next release' "$root/etc/pagekeeper/guard.toml.rpmnew" || fail "the configuration of the rpm's upgrade is not beside the changed one"
lay_out_libraries
# rpm reports kept changed files on stderr.
rpms --erase pagekeeper 2>"$test/said" || fail "the rpm is not erased: $(cat "$test/said")"
kept_configuration "erasing the rpm" .rpmsave
compgen -G "$root/dev/shm/elsewhere/libpagekeeper-*.so" >/dev/null || fail "erasing the rpm followed a link that anybody can make"
rm -r "$root/etc/pagekeeper" "$root/etc/default/pagekeeper.rpmsave" "$root/dev/shm/elsewhere" "$root/dev/shm/pagekeeper-0"
files >"$test/after"
diff "$test/before" "$test/after" || fail "erasing the rpm left (>) or removed (<) the files above"
echo "the rpm: installed, upgraded and erased; needs glibc $newest"
echo "not tested: the packages' scripts beside a running systemd (make test-cgroup-v2 ARGS=unit)"
