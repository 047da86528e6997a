#!/usr/bin/env bash
# Packages all crates as they would be published, and uses the packages as a stranger would: `cargo install pagekeeper`,
# and a small program that uses page cache, log, store and tree. Packages and dependencies are read from one directory
# in the form of a registry; nothing of the repository is used. Then compiles the workspace with the oldest supported
# compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")

scripts/require-rust.sh
dir=$(mktemp --directory "${TMPDIR:-/var/tmp}/pagekeeper-crates.XXXXXX")
trap 'rm -rf "$dir"' EXIT

manifests=$(ls bench/Cargo.toml crates/*/*/Cargo.toml docs/Cargo.toml integrations/*/Cargo.toml)
unpublished=""
for manifest in $manifests; do
    name=$(sed -n '/^\[package\]/,/^$/s/^name = "\(.*\)"/\1/p' "$manifest")
    if grep --quiet '^publish = false' "$manifest"; then
        unpublished+=" $name"
    # (pagekeeper itself is a program without a library: docs.rs has no page of those.)
    elif [ "$name" != pagekeeper ] && ! grep --quiet '^\[package.metadata.docs.rs\]' "$manifest"; then
        echo "$name: has no metadata for docs.rs" >&2
        exit 1
    fi
done
# Tests the tree as it is, committed or not. Tests outside of the packages are left out.
rm -rf "$target/package"
# (--quiet would hide cargo's warnings.)
"$cargo" package --workspace --no-verify --allow-dirty --target-dir "$target" \
    $(printf -- '--exclude %s ' $unpublished) 2>"$dir/messages" || { cat "$dir/messages" >&2; exit 1; }
if grep '^warning: ' "$dir/messages" | grep -v '^warning: ignoring test `.*` as `../../../tests/' >&2; then
    echo "The packages have the faults above." >&2
    exit 1
fi

"$cargo" vendor --quiet --locked "$dir/vendor" >/dev/null
for package in "$target"/package/*.crate; do
    name=$(basename "$package" .crate)
    tar --extract --file "$package" --directory "$dir/vendor"
    for file in README.md LICENSE-APACHE LICENSE-MIT Cargo.lock; do
        if [ ! -s "$dir/vendor/$name/$file" ]; then
            echo "$name: its package has no $file" >&2
            exit 1
        fi
    done
    echo "{\"files\":{},\"package\":\"$(sha256sum "$package" | cut -d ' ' -f 1)\"}" >"$dir/vendor/$name/.cargo-checksum.json"
done
mkdir "$dir/.cargo"
cat >"$dir/.cargo/config.toml" <<END
[source.crates-io]
replace-with = "packages"
[source.packages]
directory = "$dir/vendor"
END

# A stranger's program.
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
"$cargo" new --quiet --vcs none "$dir/engine"
for crate in "$target"/package/*.crate; do
    name=$(basename "$crate" "-$version.crate")
    [ "$name" = pagekeeper ] || echo "$name = \"$version\""
done >>"$dir/engine/Cargo.toml"
cat >"$dir/engine/src/main.rs" <<'END'
use pagekeeper_cache::PageCache;
use pagekeeper_store::{Durability, Store};
use pagekeeper_tree::Tree;
use pagekeeper_wal::RedoLog;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::path::PathBuf::from(std::env::args().nth(1).ok_or("a directory, please")?);
    let log = RedoLog::options().files(2).file_bytes(1 << 20).create(&dir.join("redo"))?;
    log.wait_flushed(log.append(b"a record")?)?;

    let store = Store::options().memory(16 << 20).open(&dir.join("store"))?;
    let mut txn = store.begin_write()?;
    let page = txn.allocate()?;
    txn.page_mut(page)?[..7].copy_from_slice(b"balance");
    let tree = Tree::create(&mut txn)?;
    tree.insert(&mut txn, b"ada", b"1815")?;
    txn.commit(Durability::Sync)?;
    assert_eq!(&store.begin_read()?.read(page)?[..7], b"balance");
    assert_eq!(tree.get(&store.begin_read()?, b"ada")?.as_deref(), Some(&b"1815"[..]));
    store.close()?;

    std::fs::write(dir.join("table"), [7; 40_000])?;
    let cache = PageCache::options().memory(16 << 20).build()?;
    let mut read = [0; 500];
    cache.open(dir.join("table"))?.read_at(9_000, &mut read)?;
    assert_eq!(read, [7; 500]);
    println!("log, store, tree and cache of the packages work");
    Ok(())
}
END
mkdir "$dir/data"
export CARGO_TARGET_DIR=$dir/target
(cd "$dir/engine" && "$cargo" run --quiet --offline -- "$dir/data")

# The program, with the preloaded library inside.
(cd "$dir" && "$cargo" install --config "$dir/.cargo/config.toml" --quiet --offline --locked --debug --root "$dir/root" --version "$version" pagekeeper)
dd if=/dev/zero of="$dir/data/source" bs=1M count=4 status=none conv=fsync
"$dir/root/bin/pagekeeper" evict "$dir/data/source" >/dev/null
"$dir/root/bin/pagekeeper" run --report -- cp "$dir/data/source" "$dir/data/copy" 2>&1 | tee "$dir/report"
cmp "$dir/data/source" "$dir/data/copy"
grep --quiet 'read 4 MiB' "$dir/report"
unset CARGO_TARGET_DIR

# The operator's program, without the features for engines.
"$cargo" check --quiet --locked -p pagekeeper --bins --no-default-features --target-dir "$target"

oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v rustup >/dev/null || ! rustup toolchain install --profile minimal "$oldest" >/dev/null 2>&1; then
    if [ "${PAGEKEEPER_REQUIRE_ALL:-0}" != 0 ]; then
        echo "Rust $oldest can't be installed here" >&2
        exit 1
    fi
    echo "skipped: compiling with Rust $oldest, which rustup can't install here" >&2
else
    cargo "+$oldest" check --quiet --workspace --exclude pagekeeper-bench --locked --target-dir "$dir/oldest"
    echo "compiles with Rust $oldest"
fi
