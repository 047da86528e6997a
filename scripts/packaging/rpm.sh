#!/usr/bin/env bash
# rpm.sh MACHINE ROOT COPYRIGHT OUT — builds the rpm for x86_64 or aarch64 from ROOT, as laid out by scripts/install.sh,
# in the directory OUT, and checks it with rpmlint. rpmbuild finds the needed version of glibc in the program.
# Environment as for deb.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
machine=$1 laid_out=$2 copyright=$3 out=$4

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
cp --recursive "$laid_out" "$work/root"
documents=$work/root/usr/share/doc/pagekeeper
install --mode 644 "$copyright" "$documents/copyright"
install --mode 644 CHANGELOG.md LICENSE-APACHE "$documents/"
# Compresses man pages the same way everywhere; rpmbuild would follow the distribution it runs on.
find "$work/root/usr/share/man" -type f -exec gzip --best --no-name {} +
{
    echo "* $(LC_ALL=C date --utc --date="@$SOURCE_DATE_EPOCH" '+%a %b %d %Y') $DEBFULLNAME <$DEBEMAIL> - $PACKAGE_VERSION-$PACKAGE_REVISION"
    echo "- Built from the project's source: CHANGELOG.md says what changed."
} >"$work/changelog"
cat deploy/rpm/pagekeeper.spec "$work/changelog" >"$work/pagekeeper.spec"
# Files have the source's times, not the machine's; nothing of the machine is in the package.
rpmbuild --quiet -bb --target "$machine-linux" \
    --define "_topdir $work/build" --define "_rpmdir $work/rpms" --define "_dbpath $work/db" \
    --define "laid_out $work/root" --define "version_built $PACKAGE_VERSION" --define "revision_built $PACKAGE_REVISION" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
    --define "_binary_payload w9.gzdio" --define "debug_package %{nil}" --define "_build_id_links none" \
    --define "__os_install_post %{nil}" "$work/pagekeeper.spec"
package=$(find "$work/rpms" -name '*.rpm')
rpmlint --strict --rpmlintrc deploy/rpm/pagekeeper.rpmlintrc "$package"
mv "$package" "$out/"
