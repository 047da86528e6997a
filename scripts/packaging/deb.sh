#!/usr/bin/env bash
# deb.sh ARCHITECTURE ROOT COPYRIGHT OUT — builds the Debian package for amd64 or arm64 from ROOT, as laid out by
# scripts/install.sh, with debhelper's commands, in the directory OUT, and checks it with lintian. SOURCE_DATE_EPOCH,
# PACKAGE_VERSION, PACKAGE_REVISION, DEBFULLNAME and DEBEMAIL as set by scripts/build-packages.sh.
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
# The build checked the program's needs: it runs on older Debians than this one.
echo "pagekeeper:Depends=libc6 (>= 2.28)" >"$work/debian/pagekeeper.substvars"

root=$work/debian/pagekeeper
cp --recursive "$laid_out" "$root"
# The directory of Debian's zsh.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
# The directory for units depends on the Debian release; debhelper knows it. It finds a template as pagekeeper@.NAME.service.
for unit in "$root"/usr/lib/systemd/system/*; do
    name=${unit##*/} at=""
    [[ $name != *@* ]] || at=@
    mv "$unit" "$work/debian/pagekeeper$at.${name/@/}"
done
(cd "$root" && rmdir --parents usr/lib/systemd/system 2>/dev/null) || true
cp CHANGELOG.md "$work/"

# Sets the package's architecture; the compilers that this names are not used.
eval "$(dpkg-architecture --host-arch "$architecture" --print-set 2>/dev/null)"
cd "$work"
dh_installdocs
dh_installchangelogs CHANGELOG.md
# A service that acts on other programs' memory starts only on request: deb-systemd-invoke does not start disabled services.
# (With --no-start, removal would not stop it, nor an upgrade restart it.)
dh_installsystemd --name=pagekeeper-guard --no-enable
# Templates: an administrator enables what of them is wanted.
for name in snapshot warm restart; do
    dh_installsystemd --name="pagekeeper-$name" --no-enable --no-start
done
dh_lintian
# Keeps examples uncompressed. (There is a manual called pagekeeper-guard.toml.5.)
dh_compress --exclude=/profiles/ --exclude=troubleshooting.md --exclude=.json --exclude=.yaml --exclude=.yml --exclude=doc/pagekeeper/guard.toml --exclude=.conf
dh_fixperms
dh_installdeb
dh_gencontrol
dh_md5sums
# dpkg's default compression differs between distributions.
dh_builddeb --destdir="$out" -- -Zxz
# Hints of the lowest kind are only shown: they include overrides that this revision or address does not need.
lintian --allow-root --fail-on error,warning --display-info --tag-display-limit 0 "$out/pagekeeper_${version}_$architecture.deb"
