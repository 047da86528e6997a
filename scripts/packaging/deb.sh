#!/usr/bin/env bash
# deb.sh ARCHITECTURE ROOT COPYRIGHT OUT — the Debian package for amd64 or arm64 of what scripts/install.sh has laid out in ROOT, by
# debhelper's own commands, into the directory OUT, and checked by lintian. SOURCE_DATE_EPOCH, PACKAGE_VERSION, PACKAGE_REVISION,
# DEBFULLNAME and DEBEMAIL as scripts/build-packages.sh sets them.
set -euo pipefail
cd "$(dirname "$0")/../.."
architecture=$1 laid_out=$2 copyright=$3 out=$4

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
version=$PACKAGE_VERSION-$PACKAGE_REVISION
maintainer="$DEBFULLNAME <$DEBEMAIL>"
mkdir "$work/debian"
cp deploy/debian/* "$work/debian/"
cp "$copyright" "$work/debian/copyright"
sed -i "s|^Maintainer: .*|Maintainer: $maintainer|" "$work/debian/control"
cat >"$work/debian/changelog" <<TEXT
pagekeeper ($version) unstable; urgency=medium

  * Built from the project's source: see changelog.gz for what changed.

 -- $maintainer  $(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
TEXT
# What the program needs was checked as it was built: it runs on older Debians than this one.
echo "pagekeeper:Depends=libc6 (>= 2.28)" >"$work/debian/pagekeeper.substvars"

root=$work/debian/pagekeeper
cp --recursive "$laid_out" "$root"
# Where Debian's zsh looks.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
# Where units go has changed between releases of Debian: debhelper knows.
mv "$root/usr/lib/systemd/system/pagekeeper-guard.service" "$work/debian/pagekeeper.pagekeeper-guard.service"
(cd "$root" && rmdir --parents usr/lib/systemd/system 2>/dev/null) || true
cp CHANGELOG.md "$work/"

# The rest is made for that architecture; the compilers that this names are not used.
eval "$(dpkg-architecture --host-arch "$architecture" --print-set 2>/dev/null)"
cd "$work"
dh_installdocs
dh_installchangelogs CHANGELOG.md
# A service that acts on other programs' memory begins when it is asked to: what is not enabled, deb-systemd-invoke does not start.
# (With --no-start, removal would not stop it, nor an upgrade restart it.)
dh_installsystemd --name=pagekeeper-guard --no-enable
dh_lintian
# Examples are to be copied as they are. (There is a manual called pagekeeper.toml.5.)
dh_compress --exclude=/profiles/ --exclude=.json --exclude=.yaml --exclude=.yml --exclude=guard.toml --exclude=.conf
dh_fixperms
dh_installdeb
dh_gencontrol
dh_md5sums
# What dpkg compresses by is another thing in each distribution.
dh_builddeb --destdir="$out" -- -Zxz
# Hints of the lowest kind are shown only: overrides that this revision or address doesn't need are among them.
lintian --allow-root --fail-on error,warning --display-info --tag-display-limit 0 "$out/pagekeeper_${version}_$architecture.deb"
