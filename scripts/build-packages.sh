#!/usr/bin/env bash
# Builds the packages for users, for x86-64 and aarch64, in target/packages: a Debian package, an rpm, a static program
# with its manuals, the same as a wheel and an npm package, Debian packages of the libraries, a container image for both
# processors, the Helm chart, the list of linked components (CycloneDX), and SHA256SUMS of all. ARGS or the arguments
# name architectures as Debian does (amd64, arm64); without them, both are built.
#
# All packages contain one program per processor (scripts/packaging/build.sh), laid out by scripts/install.sh. The same
# source gives the same bytes in any directory: times are those of the last commit (SOURCE_DATE_EPOCH), and the names of
# the build directories are left out. Compilers and packing tools must have the same versions, too.
#
# PROGRAMS is a directory with programs of an earlier build, by architecture; they are not built again, and without
# libraries beside them there are no packages of these. PACKAGE_REVISION (1) follows the version; increase it to build a
# package again. GUARD_TOML replaces deploy/guard.toml as the guard's configuration. DEBFULLNAME and DEBEMAIL name the
# builder.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
packages=$target/packages
architectures=("$@")
[ ${#architectures[@]} -gt 0 ] || architectures=(amd64 arm64)

scripts/packages.sh "Debian packages: debhelper dpkg-dev lintian" "rpms: rpm rpmlint" "zig, and images: python3 python3-pip" \
    "what is checked of programs: binutils" \
    "RocksDB's file system: g++ librocksdb-dev"
for tool in dh_builddeb lintian rpmbuild rpmlint python3 readelf rustup; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is missing: packages can't be built without it" >&2
        exit 1
    fi
done
scripts/require-rust.sh

PACKAGE_VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
export PACKAGE_VERSION PACKAGE_REVISION=${PACKAGE_REVISION:-1}
export DEBFULLNAME=${DEBFULLNAME:-The pagekeeper authors} DEBEMAIL=${DEBEMAIL:-root@localhost}
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && ! SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null); then
    echo "This source is not a git checkout: set SOURCE_DATE_EPOCH to the time for the packages' files, in seconds since 1970" >&2
    exit 1
fi
export SOURCE_DATE_EPOCH
export TZ=UTC LC_ALL=C.UTF-8
umask 022

work=$packages/work configuration=${GUARD_TOML:-deploy/guard.toml}
rm -rf "$packages"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
machine() {
    case $1 in
        amd64) echo x86_64 ;;
        arm64) echo aarch64 ;;
        *) echo "unknown architecture: $1" >&2 && return 1 ;;
    esac
}

own=$(dpkg --print-architecture)
# This machine's program writes the manuals for all architectures.
programs=${PROGRAMS:-$work/programs}
for architecture in "$own" "${architectures[@]}"; do
    [ -e "$programs/$architecture" ] || scripts/packaging/build.sh "$(machine "$architecture")" "$programs/$architecture"
done

images=()
for architecture in "${architectures[@]}"; do
    machine=$(machine "$architecture")
    built=$work/$architecture
    root=$built/root
    mkdir -p "$built"
    PROGRAM=$programs/$architecture/pagekeeper RUNS_HERE=$programs/$own/pagekeeper DESTDIR=$root PREFIX=/usr scripts/install.sh >/dev/null
    # The configuration belongs to the administrator once installed.
    install -D --mode 644 "$configuration" "$root/etc/pagekeeper/guard.toml"
    install -D --mode 644 deploy/debian/default "$root/etc/default/pagekeeper"
    scripts/packaging/copyright.py "$machine-unknown-linux-gnu" >"$built/copyright"

    scripts/packaging/deb.sh "$architecture" "$root" "$built/copyright" "$packages"
    scripts/packaging/rpm.sh "$machine" "$root" "$built/copyright" "$packages"
    scripts/packaging/sbom.sh "$machine-unknown-linux-gnu" >"$packages/pagekeeper-$PACKAGE_VERSION-$machine.cdx.json"

    name=pagekeeper-$PACKAGE_VERSION-$machine-linux-static
    # The manual and the unit expect the program in /usr/local.
    PROGRAM=$programs/$architecture/pagekeeper-static RUNS_HERE=$programs/$own/pagekeeper DESTDIR='' PREFIX=$built/$name scripts/install.sh >/dev/null
    sed --in-place "s|$built/$name/|/usr/local/|g" "$built/$name"/lib/systemd/system/* \
        "$built/$name/share/doc/pagekeeper"/{metrics.conf,prometheus-rules.yml,run/*}
    cp "$built/copyright" LICENSE-APACHE LICENSE-MIT "$built/$name/share/doc/pagekeeper/"
    scripts/packaging/packed.sh "$built" "$name" >"$packages/$name.tar.gz"
    scripts/packaging/wheel.py "$packages" "$PACKAGE_VERSION" "$machine" "$built/$name"
    scripts/packaging/npm.sh "$PACKAGE_VERSION" "$machine" "$built/$name" >"$packages/pagekeeper-$PACKAGE_VERSION-$machine-npm.tgz"

    [ ! -e "$programs/$architecture/libraries" ] ||
        scripts/packaging/libraries.sh "$architecture" "$programs/$architecture/libraries" "$built/copyright" "$packages"

    install -D --mode 755 "$programs/$architecture/pagekeeper-static" "$built/image/usr/bin/pagekeeper"
    install -D --mode 644 "$configuration" "$built/image/etc/pagekeeper/guard.toml"
    install -D --mode 644 --target-directory "$built/image/usr/share/doc/pagekeeper" "$built/copyright" LICENSE-APACHE
    images+=("$architecture=$built/image")
done
scripts/packaging/image.py "$packages/pagekeeper-$PACKAGE_VERSION-image.tar" "$PACKAGE_VERSION" "${images[@]}"
scripts/packaging/packed.sh deploy/helm pagekeeper >"$packages/pagekeeper-chart-$PACKAGE_VERSION.tgz"
(cd "$packages" && sha256sum -- *.deb *.rpm *.tar.gz *.tgz *.tar *.whl *.json >SHA256SUMS)
rm -rf "$work"
(cd "$packages" && du --apparent-size --human-readable -- *)
