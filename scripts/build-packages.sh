#!/usr/bin/env bash
# The Debian package of this source, for this machine's Debian and architecture, into target/packages: pagekeeper_VERSION_ARCH.deb and
# SHA256SUMS. It is made of what scripts/install.sh lays out, by debhelper's own commands, and checked by lintian.
#
# The same source gives the same bytes, wherever it is built: times are those of the last commit (SOURCE_DATE_EPOCH), and names of the
# directories that it was built in are left out of the program. PACKAGE_REVISION (1) is what follows the version, to build a package
# anew; DEBFULLNAME and DEBEMAIL are who builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
packages=$target/packages

scripts/packages.sh "Debian packages: debhelper dpkg-dev lintian"
for tool in dh_builddeb dpkg-shlibdeps lintian; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is missing, without which no Debian package is built: apt-get install debhelper dpkg-dev lintian" >&2
        exit 1
    fi
done

scripts/require-rust.sh

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)-${PACKAGE_REVISION:-1}
maintainer="${DEBFULLNAME:-The pagekeeper authors} <${DEBEMAIL:-root@localhost}>"
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && ! SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null); then
    echo "This source is not a git checkout: set SOURCE_DATE_EPOCH to the seconds since 1970 that the package's files are to carry" >&2
    exit 1
fi
export SOURCE_DATE_EPOCH
export TZ=UTC LC_ALL=C.UTF-8
umask 022

work=$packages/work
rm -rf "$work" "$packages"/*.deb "$packages/SHA256SUMS"
mkdir -p "$work/debian"
cp deploy/debian/* "$work/debian/"
sed -i "s|^Maintainer: .*|Maintainer: $maintainer|" "$work/debian/control"
cat >"$work/debian/changelog" <<TEXT
pagekeeper ($version) unstable; urgency=medium

  * Built from the project's source: see changelog.gz for what changed.

 -- $maintainer  $(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
TEXT

# Flags of its own make it a build of its own.
separator=$'\x1f'
flags=("--remap-path-prefix=$target/packages/build=/usr/src/pagekeeper/target" "--remap-path-prefix=$PWD=/usr/src/pagekeeper"
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo")
root=$work/debian/pagekeeper
CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator && echo "${flags[*]}") CARGO_TARGET_DIR="$packages/build" \
    DESTDIR="$root" PREFIX=/usr scripts/install.sh >/dev/null
# Where Debian's zsh looks.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
# Where units go has changed between releases of Debian: debhelper knows.
mv "$root/usr/lib/systemd/system/pagekeeper-guard.service" "$work/debian/pagekeeper.pagekeeper-guard.service"
(cd "$root" && rmdir --parents usr/lib/systemd/system 2>/dev/null) || true
# The configuration, which is the administrator's from then on: debhelper takes all files in /etc for such.
install -D --mode 644 deploy/pagekeeper-guard.toml "$root/etc/pagekeeper/guard.toml"
install -D --mode 644 "$work/debian/default" "$root/etc/default/pagekeeper"

cp CHANGELOG.md "$work/"
(
    cd "$work"
    dh_installdocs
    dh_installchangelogs CHANGELOG.md
    # A service that acts on other programs' memory begins when it is asked to: what is not enabled, deb-systemd-invoke does not start.
    # (With --no-start, removal would not stop it, nor an upgrade restart it.)
    dh_installsystemd --name=pagekeeper-guard --no-enable
    dh_lintian
    # Examples are to be copied as they are.
    dh_compress --exclude=.json --exclude=.yaml --exclude=.yml --exclude=.toml --exclude=.conf
    dh_fixperms
    dh_strip --no-automatic-dbgsym
    dh_shlibdeps
    dh_installdeb
    dh_gencontrol
    dh_md5sums
    dh_builddeb --destdir="$packages"
)
package=$(basename "$packages"/pagekeeper_*.deb)
(cd "$packages" && sha256sum "$package" >SHA256SUMS)
# Hints of the lowest kind are shown only: overrides that this revision or address doesn't need are among them.
lintian --allow-root --fail-on error,warning --display-info --tag-display-limit 0 "$packages/$package"
rm -rf "$work"
echo "$packages/$package: $(stat --format=%s "$packages/$package") bytes, lintian finds no fault"
