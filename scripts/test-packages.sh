#!/usr/bin/env bash
# The Debian package as a user meets it: built twice, in two places, to the same bytes; installed into a clean Debian of this machine's
# release, used there, upgraded, removed and purged. As root; it takes minutes for the second build, and as long again for the clean
# Debian, which is kept for the next time (target/packages-test/debian-CODENAME.tar).
#
# No systemd runs in there: what the package's scripts do to a running one (reload, stop, restart) is not seen here.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
test=$target/packages-test

if [ "$(id -u)" -ne 0 ]; then
    echo "A package is installed into a Debian of its own, by chroot: run this as root" >&2
    exit 1
fi
scripts/packages.sh "a clean Debian: mmdebstrap" || echo "mmdebstrap could not be installed" >&2
mkdir -p "$test"
root=$test/root
discard() {
    rm -rf "$root" "$test/elsewhere" "$test/target" "$test"/*.new
}
trap discard EXIT
discard

fail() {
    echo "test-packages: $*" >&2
    exit 1
}

# --- Built twice.
packages=$target/packages
PACKAGE_REVISION=2 scripts/build-packages.sh
higher=$test/higher.deb
mv "$packages"/pagekeeper_*-2_*.deb "$higher"
scripts/build-packages.sh
package=$(compgen -G "$packages/pagekeeper_*-1_*.deb")
(cd "$packages" && sha256sum --check --quiet SHA256SUMS)

mkdir "$test/elsewhere"
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- | tar --extract --directory "$test/elsewhere"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} CARGO_TARGET_DIR=$test/target "$test/elsewhere/scripts/build-packages.sh"
cmp "$package" "$test/target/packages/${package##*/}" || fail "two builds of one source differ: compare them with diffoscope"
echo "the same bytes from two places: $(cut -d ' ' -f 1 "$packages/SHA256SUMS")"
rm -rf "$test/elsewhere" "$test/target"

# --- A clean Debian.
# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
clean=$test/debian-$codename.tar
if [ ! -e "$clean" ] && ! mmdebstrap --quiet --variant=minbase "$codename" "$test/debian.tar.new"; then
    echo "SKIPPED: installing, upgrading and purging, as no clean Debian could be made by mmdebstrap --variant=minbase $codename"
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
    inside dpkg --install /package.deb </dev/null >"$test/dpkg.log" 2>&1 || { cat "$test/dpkg.log" >&2 && fail "dpkg didn't install ${1##*/}"; }
    rm "$root/package.deb"
}
there() { # there FILE...: files of the package that aren't empty
    local file
    for file in "$@"; do
        [ -s "$root$file" ] || fail "$file is missing or empty"
    done
}
# All there is, but for what dpkg itself and the loader keep.
files() {
    (cd "$root" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/log/*' -not -path './var/cache/*' | sort)
}
# Where `systemctl enable` makes its link.
wants=$root/etc/systemd/system/multi-user.target.wants
mkdir -p "$wants"
files >"$test/before"

# --- Installed.
install_package "$package"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$(inside pagekeeper --version)" = "pagekeeper $version" ] || fail "pagekeeper --version says $(inside pagekeeper --version)"
inside pagekeeper demo --help | grep --quiet -- --seconds || fail "pagekeeper demo --help says nothing of --seconds"
for command in '' $(inside pagekeeper --help | awk '/^Commands:/ { on = 1; next } on && /^  [a-z]/ { print $1 } /^Options:/ { on = 0 }'); do
    [ "$command" = help ] || there "/usr/share/man/man1/pagekeeper${command:+-$command}.1.gz"
done
there /usr/share/man/man5/pagekeeper.toml.5.gz
gzip --decompress --stdout "$root/usr/share/man/man1/pagekeeper-guard.1.gz" | grep -- '--dry-run\|dry\\-run' >/dev/null || fail "pagekeeper-guard(1) is no man page of it"
inside bash -c '. /usr/share/bash-completion/completions/pagekeeper && complete -p pagekeeper' >/dev/null || fail "bash does not complete pagekeeper"
there /usr/share/zsh/vendor-completions/_pagekeeper /usr/share/fish/vendor_completions.d/pagekeeper.fish \
    /usr/share/doc/pagekeeper/{copyright,changelog.gz,changelog.Debian.gz,metrics.conf,doctor.schema.json,run/mariadb.conf}
unit=$(inside dpkg --listfiles pagekeeper | grep '/systemd/system/pagekeeper-guard.service$') || fail "the package has no unit"
grep --quiet '^ExecStart=/usr/bin/pagekeeper guard ' "$root$unit" || fail "the unit starts another program than the package's"
[ -z "$(inside find /etc/systemd/system -name 'pagekeeper*')" ] || fail "the service was enabled by being installed"
inside dpkg --verify pagekeeper | grep . && fail "files differ from what the package says of them"
[ "$(inside dpkg-query --show --showformat '${Conffiles}\n' pagekeeper | awk 'NF { print $1 }' | sort | paste -sd ' ')" = \
    "/etc/default/pagekeeper /etc/pagekeeper/guard.toml" ] || fail "other files than the configuration are kept as such"

# --- Upgraded: what the administrator set stays.
ln --symbolic "$unit" "$wants/pagekeeper-guard.service"
echo '# set by the administrator' >>"$root/etc/pagekeeper/guard.toml"
install_package "$higher"
[ "$(inside dpkg-query --show --showformat '${Version}' pagekeeper)" = "$version-2" ] || fail "it was not upgraded"
grep --quiet 'set by the administrator' "$root/etc/pagekeeper/guard.toml" || fail "an upgrade took a changed configuration away"
[ -L "$wants/pagekeeper-guard.service" ] || fail "an upgrade disabled the service"

# --- Removed, and purged.
mkdir -p "$root/var/lib/pagekeeper/disks"
touch "$root/var/lib/pagekeeper/disks/8:1.toml" "$root/var/lib/pagekeeper/mysql.pks"
inside dpkg --remove pagekeeper >/dev/null
grep --quiet 'set by the administrator' "$root/etc/pagekeeper/guard.toml" || fail "removal took the configuration away"
[ ! -e "$root/usr/bin/pagekeeper" ] || fail "removal left the program"
[ -e "$root/var/lib/pagekeeper/disks/8:1.toml" ] || fail "removal took saved disk profiles away"
inside dpkg --purge pagekeeper >/dev/null
[ -e "$root/var/lib/pagekeeper/mysql.pks" ] || fail "purge removed a snapshot that somebody saved"
rm -r "$root/var/lib/pagekeeper/mysql.pks"
rmdir "$root/var/lib/pagekeeper" || fail "purge left saved disk profiles"
files >"$test/after"
diff "$test/before" "$test/after" || fail "purge left the above (>) behind, or took it away (<)"

echo "installed, upgraded, removed and purged in a clean Debian $codename"
echo "not seen: the scripts beside a running systemd"
