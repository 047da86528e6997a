#!/usr/bin/env bash
# What is given to users, for x86-64 and aarch64, into target/packages: a Debian package, an rpm, a static program with its manuals, an
# image of containers for both, the Helm chart, what is linked in (CycloneDX), and SHA256SUMS of all. ARGS or the arguments name architectures as Debian
# does: amd64, arm64; without, both.
#
# All are made of one program for each processor (scripts/packaging/build.sh), laid out by scripts/install.sh. The same source gives the
# same bytes, wherever it lies: times are those of the last commit (SOURCE_DATE_EPOCH), and names of the directories that it was built
# in are left out. (The compilers and what packs have to be of the same versions, too.)
#
# PROGRAMS is a directory in which programs were left before, by architecture: they are not built again. PACKAGE_REVISION (1) is what
# follows the version, to build a package anew; GUARD_TOML is another configuration of the guard than deploy/pagekeeper-guard.toml;
# DEBFULLNAME and DEBEMAIL are who builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
packages=$target/packages
architectures=("$@")
[ ${#architectures[@]} -gt 0 ] || architectures=(amd64 arm64)

scripts/packages.sh "Debian packages: debhelper dpkg-dev lintian" "rpms: rpm rpmlint" "zig, and images: python3 python3-pip" \
    "what is checked of programs: binutils"
for tool in dh_builddeb lintian rpmbuild rpmlint python3 readelf rustup; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is missing, without which no packages are built" >&2
        exit 1
    fi
done
scripts/require-rust.sh

PACKAGE_VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
export PACKAGE_VERSION PACKAGE_REVISION=${PACKAGE_REVISION:-1}
export DEBFULLNAME=${DEBFULLNAME:-The pagekeeper authors} DEBEMAIL=${DEBEMAIL:-root@localhost}
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && ! SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null); then
    echo "This source is not a git checkout: set SOURCE_DATE_EPOCH to the seconds since 1970 that the packages' files are to carry" >&2
    exit 1
fi
export SOURCE_DATE_EPOCH
export TZ=UTC LC_ALL=C.UTF-8
umask 022

work=$packages/work configuration=${GUARD_TOML:-deploy/pagekeeper-guard.toml}
rm -rf "$packages"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
machine() {
    case $1 in
        amd64) echo x86_64 ;;
        arm64) echo aarch64 ;;
        *) echo "no architecture that is built for: $1" >&2 && return 1 ;;
    esac
}

own=$(dpkg --print-architecture)
# The program of this machine writes the manuals of all.
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
    # The configuration, which is the administrator's from then on.
    install -D --mode 644 "$configuration" "$root/etc/pagekeeper/guard.toml"
    install -D --mode 644 deploy/debian/default "$root/etc/default/pagekeeper"
    scripts/packaging/copyright.py "$machine-unknown-linux-gnu" >"$built/copyright"

    scripts/packaging/deb.sh "$architecture" "$root" "$built/copyright" "$packages"
    scripts/packaging/rpm.sh "$machine" "$root" "$built/copyright" "$packages"
    scripts/packaging/sbom.sh "$machine-unknown-linux-gnu" >"$packages/pagekeeper-$PACKAGE_VERSION-$machine.cdx.json"

    name=pagekeeper-$PACKAGE_VERSION-$machine-linux-static
    # For /usr/local, as the manual says: the unit starts the program there.
    PROGRAM=$programs/$architecture/pagekeeper-static RUNS_HERE=$programs/$own/pagekeeper DESTDIR='' PREFIX=$built/$name scripts/install.sh >/dev/null
    sed --in-place "s|$built/$name/|/usr/local/|g" "$built/$name/lib/systemd/system/pagekeeper-guard.service" \
        "$built/$name/share/doc/pagekeeper/metrics.conf" "$built/$name"/share/doc/pagekeeper/run/*
    cp "$built/copyright" LICENSE-APACHE LICENSE-MIT "$built/$name/share/doc/pagekeeper/"
    scripts/packaging/packed.sh "$built" "$name" >"$packages/$name.tar.gz"

    install -D --mode 755 "$programs/$architecture/pagekeeper-static" "$built/image/usr/bin/pagekeeper"
    install -D --mode 644 "$configuration" "$built/image/etc/pagekeeper/guard.toml"
    install -D --mode 644 --target-directory "$built/image/usr/share/doc/pagekeeper" "$built/copyright" LICENSE-APACHE
    images+=("$architecture=$built/image")
done
scripts/packaging/image.py "$packages/pagekeeper-$PACKAGE_VERSION-image.tar" "$PACKAGE_VERSION" "${images[@]}"
scripts/packaging/packed.sh deploy/helm pagekeeper >"$packages/pagekeeper-chart-$PACKAGE_VERSION.tgz"
(cd "$packages" && sha256sum -- *.deb *.rpm *.tar.gz *.tgz *.tar *.json >SHA256SUMS)
rm -rf "$work"
(cd "$packages" && du --apparent-size --human-readable -- *)
