#!/usr/bin/env bash
# Compares what the crates for engines' authors offer with what the last release offered, by cargo-semver-checks, which is built into target/tools where
# it is missing (the other crates are parts of the command, and promise nothing): a change that a program of somebody else's would not survive fails, unless the version says it.
#
# The last release is the newest version with a section in CHANGELOG.md of which there is a tag vVERSION, or a commit in which nothing had come
# above that section yet, other than the commit that is checked: a release is compared with the one before it. An argument names another commit.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
checks=0.51.0

scripts/require-rust.sh
head=$(git rev-parse HEAD)
if [ -z "${1:-}" ] && [ "$(git rev-parse --is-shallow-repository)" = true ]; then
    echo "The last release may be missing here: fetch the whole history (git fetch --unshallow --tags), or name a commit" >&2
    exit 1
fi
versions=$(sed -n 's/^## \[\([0-9][0-9.]*\)\].*/\1/p' CHANGELOG.md)
baseline=${1:-}
for version in $versions; do
    [ -z "$baseline" ] || break
    if tagged=$(git rev-parse --quiet --verify "v$version^{commit}"); then
        # This release itself is what is compared.
        [ "$tagged" != "$head" ] || continue
        baseline=v$version
    fi
    for commit in $([ -n "$baseline" ] || git log --format=%H -- CHANGELOG.md); do
        [ "$commit" != "$head" ] || continue
        # What is unreleased there, and which release is below it.
        newest=$(git show "$commit:CHANGELOG.md" | awk '!n && /^## \[[0-9]/ { n = $2 } !n && /^- / { n = "unreleased" } END { print n }')
        [ "$newest" != "[$version]" ] || { baseline=$commit && break; }
    done
done
if [ -z "$baseline" ]; then
    echo "No commit is known of any version: name one" >&2
    exit 1
fi
PATH=$PATH:$target/tools/bin
if ! command -v cargo-semver-checks >/dev/null; then
    "$cargo" install --quiet --locked --root "$target/tools" "cargo-semver-checks@$checks"
fi
echo "compared with $(git log -1 --format='%h of %cs' "$baseline")"
packages=()
for list in crates/*/*/api.txt; do
    # A crate that is new has nothing to be compared with.
    git cat-file -e "$baseline:$(dirname "$list")/Cargo.toml" 2>/dev/null || continue
    packages+=(--package "pagekeeper-$(basename "$(dirname "$list")")")
done
"$cargo" semver-checks check-release "${packages[@]}" --baseline-rev "$baseline"
