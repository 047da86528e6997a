#!/usr/bin/env bash
# test-formats.sh PACKAGES MACHINE ARCHITECTURE — runs the static program and the image of scripts/build-packages.sh in
# an empty root, without a shell or C library; installs the wheel and the npm package from their files; and builds
# programs with the packaged libraries. As root. Programs for other processors run under qemu-user.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$1 machine=$2 architecture=$3
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
test=$(mktemp --directory --tmpdir=/var/tmp)
trap 'rm -rf "$test"' EXIT
fail() {
    echo "test-formats: $*" >&2
    exit 1
}
machine_of() {
    LC_ALL=C readelf --file-header "$1" | sed -n 's/^ *Machine: *//p'
}

# --- The static program.
for archive in "$packages"/*-static.tar.gz; do
    mkdir -p "$test/static"
    tar --extract --file "$archive" --directory "$test/static"
    name=$(basename "$archive" .tar.gz)
    case "$name:$(machine_of "$test/static/$name/bin/pagekeeper")" in
        *x86_64*:*X86-64 | *aarch64*:AArch64) ;;
        *) fail "$name is for $(machine_of "$test/static/$name/bin/pagekeeper")" ;;
    esac
    grep --quiet '^ExecStart=/usr/local/bin/pagekeeper guard ' "$test/static/$name/lib/systemd/system/pagekeeper-guard.service" ||
        fail "the unit of $name starts another program"
    grep --quiet 'runbook_url: "file:///usr/local/share/doc/pagekeeper/troubleshooting.md#' "$test/static/$name/share/doc/pagekeeper/prometheus-rules.yml" ||
        fail "the alerts of $name name another runbook"
    grep --recursive --files-with-matches --fixed-strings "$PWD" "$test/static/$name" && fail "$name contains the path of its build directory"
done
name=pagekeeper-$version-$machine-linux-static
[ -d "$test/static/$name" ] || fail "there is no static program for this machine"
static=$test/static/$name/bin/pagekeeper
mkdir -p "$test/empty/proc" "$test/empty/data"
cp "$static" "$test/empty/pagekeeper"
head --bytes=8M /dev/zero >"$test/empty/data/file"
sync "$test/empty/data/file"
# Runs in its own PID and mount namespaces, as a container does.
alone() { # root, command
    unshare --pid --fork --mount --net --ipc --mount-proc="$1/proc" chroot "$@"
}
alone "$test/empty" /pagekeeper --version >"$test/said"
[ "$(head -n 1 "$test/said")" = "pagekeeper $version" ] || fail "the version is $(cat "$test/said")"
grep --quiet 'linked statically' "$test/said" || fail "the version does not mention static linking"
alone "$test/empty" /pagekeeper evict /data | grep --quiet 'evicted 8 MiB of 8 MiB' || fail "it evicts nothing in an empty root"
alone "$test/empty" /pagekeeper stat --json /data >/dev/null
# Without root's capabilities there are no kernel events, so the library is preloaded, into programs with glibc.
without_events() {
    setpriv --bounding-set=-all --inh-caps=-all "$@"
}
without_events "$static" run --require --report -- cat "$test/empty/data/file" 2>"$test/report" >/dev/null || fail "run: $(cat "$test/report")"
grep --quiet 'read 8 MiB' "$test/report" || fail "its library did not see what cat read: $(cat "$test/report")"
[ "$(fincore --bytes --noheadings --output RES "$test/empty/data/file")" -lt 1048576 ] || fail "its library released nothing"
echo "the static program: runs in an empty root, and loads its library into programs with glibc"

# --- The wheel and the npm package, installed from their files alone.
scripts/packages.sh "the wheel: python3-pip"
# Node.js of other sources than Debian has npm in its own package, which Debian's would replace.
command -v npm >/dev/null || scripts/packages.sh "the npm package: npm"
wheel=$(compgen -G "$packages/pagekeeper-$version-py3-none-*_$machine.whl")
# Debian's own Python would install into local/ below the prefix.
DEB_PYTHON_INSTALL_LAYOUT=deb_system python3 -m pip install --quiet --no-index --no-deps --root-user-action ignore --prefix "$test/pip" "$wheel"
npm install --silent --offline --global --prefix "$test/npm" "$packages/pagekeeper-$version-$machine-npm.tgz"
for installed in "$test/pip" "$test/npm"; do
    [ "$("$installed/bin/pagekeeper" -V)" = "pagekeeper $version" ] || fail "$installed/bin/pagekeeper does not run"
    without_events "$installed/bin/pagekeeper" run --require -- true || fail "$installed/bin/pagekeeper has no library for run"
    [ -e "$installed/share/man/man1/pagekeeper-guard.1" ] || fail "$installed has no manuals"
done
python3 - "$wheel" <<'TEXT' || fail "the wheel's list of files is wrong"
import base64, csv, hashlib, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (record,) = (name for name in wheel.namelist() if name.endswith("/RECORD"))
    listed = {row[0]: row[1] for row in csv.reader(wheel.read(record).decode().splitlines())}
    assert set(listed) == set(wheel.namelist())
    for name in set(listed) - {record}:
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
        assert listed[name] == f"sha256={digest}", name
TEXT
echo "the wheel and the npm package: installed from their files"

# --- The libraries, unpacked: a program in C++, SQLite's shell, and RocksDB's file system in a program that loads it.
scripts/packages.sh "programs with the libraries: g++ pkg-config sqlite3 rocksdb-tools"
for debian in "$packages"/{libpagekeeper0,libpagekeeper-dev,pagekeeper-sqlite,pagekeeper-rocksdb}_*_"$architecture".deb; do
    dpkg-deb --extract "$debian" "$test/libraries"
done
libraries=$test/libraries/usr/lib
for name in $(sed -n 's/^#define \(pk_[a-z_]*\) pk_[a-z_]*$/\1/p' "$test/libraries/usr/include/pagekeeper.h"); do
    nm --dynamic --defined-only "$libraries/libpagekeeper.so" | grep " $name@" >/dev/null || fail "the C library lost the name $name"
done
# shellcheck disable=SC2046
c++ -std=c++17 crates/engine/capi/examples/store.cpp -o "$test/store" \
    $(PKG_CONFIG_PATH=$libraries/pkgconfig pkg-config --cflags --libs pagekeeper)
mkdir "$test/data"
LD_LIBRARY_PATH=$libraries "$test/store" "$test/data" >"$test/said" 2>&1 || fail "the program in C++ fails: $(cat "$test/said")"
sqlite3 :memory: ".load $libraries/pagekeeper/pagekeeper_sqlite" ".open file:$test/data/app.db?vfs=pagekeeper" \
    "CREATE TABLE t(a); INSERT INTO t VALUES (7); SELECT a FROM t;" >"$test/said" 2>&1 || fail "SQLite: $(cat "$test/said")"
[ "$(cat "$test/said")" = 7 ] || fail "SQLite says $(cat "$test/said")"
under_rocksdb() {
    LD_PRELOAD=$libraries/pagekeeper/librocksdb_pagekeeper.so PAGEKEEPER_ROCKSDB=all ldb --db="$test/data/rocksdb" "$@" 2>&1
}
{ under_rocksdb --create_if_missing put key value && under_rocksdb get key; } >"$test/said" || fail "RocksDB: $(cat "$test/said")"
[ "$(paste -sd ' ' "$test/said")" = "OK value" ] || fail "RocksDB says $(cat "$test/said")"
echo "the libraries: a program in C++, SQLite and RocksDB use them"

# --- Programs for another processor, under qemu: they answer, list pages of a file, and act like the dynamic ones. qemu uses
# this machine's kernel, so system calls are real.
for archive in "$packages"/*-static.tar.gz; do
    other=$(basename "$archive" -linux-static.tar.gz)
    other=${other##*-}
    [ "$other" != "$machine" ] || continue
    scripts/packages.sh "programs of other processors: qemu-user-static"
    if ! command -v "qemu-$other-static" >/dev/null; then
        [ "${PAGEKEEPER_REQUIRE_ALL:-0}" = 0 ] || fail "the program for $other is not tested: qemu-$other-static is missing"
        echo "SKIPPED: the program for $other: qemu-$other-static is missing"
        continue
    fi
    case $other in
        aarch64) debian=arm64 ;;
        *) debian=amd64 ;;
    esac
    program=$test/static/$(basename "$archive" .tar.gz)/bin/pagekeeper
    mkdir "$test/deb-$other"
    dpkg-deb --fsys-tarfile "$packages"/pagekeeper_*_"$debian".deb | tar --extract --directory "$test/deb-$other" ./usr/bin/pagekeeper
    head --bytes=8M /dev/zero >"$test/resident"
    sync "$test/resident"
    # The dynamic one uses the C library of that processor's linker; $run is split into words.
    for run in "qemu-$other-static $program" "qemu-$other-static -L /usr/$other-linux-gnu $test/deb-$other/usr/bin/pagekeeper"; do
        [ "$($run -V)" = "pagekeeper $version" ] || fail "$run -V says $($run -V)"
        cat "$test/resident" >/dev/null
        $run stat --json "$test/resident" >"$test/said" || fail "$run stat: $(cat "$test/said")"
        grep --quiet '"resident":8388608' "$test/said" || fail "$run stat does not see 8 MiB: $(cat "$test/said")"
        $run evict "$test/resident" >"$test/said" || fail "$run evict: $(cat "$test/said")"
        grep --quiet 'evicted 8 MiB of 8 MiB' "$test/said" || fail "$run evict says $(cat "$test/said")"
        $run guard --once --dry-run >"$test/said" 2>&1 || fail "$run guard: $(cat "$test/said")"
    done
    echo "the programs for $other: run under qemu, static and dynamic"
done

# --- The list of linked components, checked by CycloneDX's own validator.
tools=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}/tools")
validator=cyclonedx-python-lib
if ! PYTHONPATH=$tools/cyclonedx python3 -c 'import cyclonedx.validation.json' 2>/dev/null; then
    python3 -m pip install --quiet --root-user-action ignore --target "$tools/cyclonedx" "$validator[json-validation]==11.*"
fi
for document in "$packages"/*.cdx.json; do
    machine_there=$(sed 's/.*-\(.*\)\.cdx\.json$/\1/' <<<"$document")
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tools/cyclonedx:scripts/packaging python3 - "$document" "$machine_there-unknown-linux-gnu" <<'TEXT' || fail "${document##*/} is not CycloneDX 1.5, or differs from the linked components"
import json
import sys
from linked import BESIDE, linked
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error:
    sys.exit(str(error)[:2000])
# Exactly the crates that cargo links, the project's own and the compilers' libraries; procedural macros run only in the build.
parts = json.loads(text)["components"]
unnamed = {name for name, _, _ in BESIDE} - {part["name"] for part in parts}
if unnamed:
    sys.exit(f"missing: {sorted(unnamed)}")
listed = {(part["name"], part["version"]) for part in parts if "version" in part}
others = {(package["name"], package["version"]) for package in linked(sys.argv[2])[1]}
missing = others - listed
beside = {one for one in listed - others if not one[0].startswith("pagekeeper")}
if missing or beside:
    sys.exit(f"missing: {sorted(missing)}; beside: {sorted(beside)}")
TEXT
done
echo "the list of linked components is CycloneDX 1.5, and matches cargo's"

# --- The image: one name with a variant per processor, also with the manual's command; it contains the program that a pod starts.
image=$packages/pagekeeper-$version-image.tar
scripts/packages.sh "images: skopeo podman umoci"
for debian in $(cd "$packages" && compgen -G "pagekeeper_*.deb" | sed 's/.*_\(.*\)\.deb/\1/'); do
    skopeo --override-arch "$debian" copy --quiet "oci-archive:$image:$version" "oci:$test/images:$debian" || fail "there is no image for $debian"
    bundle=$test/bundle-$debian
    umoci unpack --image "$test/images:$debian" "$bundle" >/dev/null 2>&1 || fail "umoci can't unpack the image for $debian"
    case "$debian:$(machine_of "$bundle/rootfs/usr/bin/pagekeeper")" in
        amd64:*X86-64 | arm64:AArch64) ;;
        *) fail "the image for $debian is for $(machine_of "$bundle/rootfs/usr/bin/pagekeeper")" ;;
    esac
    [ "$(cd "$bundle/rootfs" && find . -type f | sort | paste -sd ' ')" = \
        "./etc/pagekeeper/guard.toml ./usr/bin/pagekeeper ./usr/share/doc/pagekeeper/LICENSE-APACHE ./usr/share/doc/pagekeeper/copyright" ] || fail "the image for $debian has other files"
done
loaded() {
    podman --root "$test/podman" --runroot "$test/podman-run" --storage-driver vfs "$@"
}
loaded load --quiet --input "$image" >"$test/said" 2>&1 || fail "podman load: $(cat "$test/said")"
loaded image exists "pagekeeper:$version" || fail "podman load names it differently: $(cat "$test/said")"
[ "$(loaded image inspect --format '{{.Architecture}}' "pagekeeper:$version")" = "$architecture" ] || fail "podman loads another processor's image"
started=$(sed -n 's/^ *command: \["\(.*\)"\]$/\1/p' deploy/kubernetes-daemonset.yaml)
[ "$(loaded image inspect --format '{{index .Config.Entrypoint 0}}' "pagekeeper:$version")" = "$started" ] || fail "a pod would start $started, which is not in the image"
rootfs=$test/bundle-$architecture/rootfs
[ -d "$rootfs" ] || fail "there is no image for this machine"
read -ra command < <(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["process"]["args"])' "${rootfs%/rootfs}/config.json")
mkdir -p "$rootfs/proc"
alone "$rootfs" "${command[@]}" --once --dry-run >"$test/said" 2>&1 || fail "the image does not run: $(cat "$test/said")"
echo "the image: ${command[*]}, with no shell or library in it; podman loads it by its name"
