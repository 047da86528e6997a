#!/usr/bin/env bash
# libraries.sh ARCHITECTURE LIBRARIES COPYRIGHT OUT — builds the Debian packages of the libraries for amd64 or arm64, in
# the directory OUT, and checks them with lintian: libpagekeeper0 and libpagekeeper-dev, pagekeeper-sqlite, and
# pagekeeper-rocksdb on the architecture of the installed RocksDB alone. LIBRARIES is what build.sh made. Environment as
# for deb.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
architecture=$1 libraries=$2 copyright=$3 out=$4

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
version=$PACKAGE_VERSION-$PACKAGE_REVISION
maintainer="$DEBFULLNAME <$DEBEMAIL>"
mkdir "$work/debian"
cp deploy/debian-libraries/control "$work/debian/"
for package in $(sed -n 's/^Package: //p' deploy/debian-libraries/control); do
    cp deploy/debian-libraries/lintian-overrides "$work/debian/$package.lintian-overrides"
done
sed -i "s|^Maintainer: .*|Maintainer: $maintainer|" "$work/debian/control"
cat >"$work/debian/changelog" <<TEXT
pagekeeper-libraries ($version) unstable; urgency=medium

  * Built from the project's source: see changelog.gz for what changed.

 -- $maintainer  $(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
TEXT
cp "$copyright" "$work/debian/copyright"
cp CHANGELOG.md "$work/"

runtime=$work/debian/libpagekeeper0 development=$work/debian/libpagekeeper-dev
mkdir -p "$runtime/usr/lib" "$development"
cp --recursive --no-dereference "$libraries/capi" "$development/usr"
mv "$development"/usr/lib/libpagekeeper.so.* "$runtime/usr/lib/"
install -D --mode 644 "$libraries/pagekeeper_sqlite.so" "$work/debian/pagekeeper-sqlite/usr/lib/pagekeeper/pagekeeper_sqlite.so"

# Sets the packages' architecture; the compilers that this names are not used.
own=$(dpkg --print-architecture)
eval "$(dpkg-architecture --host-arch "$architecture" --print-set 2>/dev/null)"
if [ "$architecture" = "$own" ]; then
    CXXFLAGS=-O2 scripts/build-rocksdb.sh "$work/rocksdb" "$libraries/capi/lib/libpagekeeper.a"
    strip --strip-unneeded "$work/rocksdb/librocksdb_pagekeeper.so"
    install -D --mode 644 --target-directory "$work/debian/pagekeeper-rocksdb/usr/lib/pagekeeper" "$work/rocksdb/librocksdb_pagekeeper.so"
else
    export DH_OPTIONS=-Npagekeeper-rocksdb
fi
cd "$work"
dh_installdocs
dh_installchangelogs CHANGELOG.md
dh_lintian
dh_compress
dh_fixperms
dh_makeshlibs -plibpagekeeper0
[ "$architecture" != "$own" ] || dh_shlibdeps -ppagekeeper-rocksdb
dh_installdeb
dh_gencontrol
dh_md5sums
dh_builddeb --destdir="$out" -- -Zxz
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$out"/libpagekeeper*_"${version}_$architecture.deb" \
    "$out"/pagekeeper-*_"${version}_$architecture.deb"
