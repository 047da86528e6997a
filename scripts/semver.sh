#!/usr/bin/env bash
# Compares the public items of the crates for engine authors with the last release by cargo-semver-checks, which is
# built in target/tools if missing. Fails on a breaking change that the version does not state. The other crates are
# parts of the command and promise nothing.
#
# The last release is the newest version with a section in CHANGELOG.md that has a tag vVERSION, or else a commit before
# anything came above that section. The checked commit itself does not count, so a release is compared with the one
# before it. An argument names another commit.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
checks=0.51.0

scripts/require-rust.sh
head=$(git rev-parse HEAD)
if [ -z "${1:-}" ] && [ "$(git rev-parse --is-shallow-repository)" = true ]; then
    echo "The last release is not in this checkout: fetch the whole history (git fetch --unshallow --tags), or name a commit" >&2
    exit 1
fi
versions=$(sed -n 's/^## \[\([0-9][0-9.]*\)\].*/\1/p' CHANGELOG.md)
baseline=${1:-}
for version in $versions; do
    [ -z "$baseline" ] || break
    if tagged=$(git rev-parse --quiet --verify "v$version^{commit}"); then
        # Skips the release that is being checked.
        [ "$tagged" != "$head" ] || continue
        baseline=v$version
    fi
    for commit in $([ -n "$baseline" ] || git log --format=%H -- CHANGELOG.md); do
        [ "$commit" != "$head" ] || continue
        # Finds the unreleased section of that commit and the release below it.
        newest=$(git show "$commit:CHANGELOG.md" | awk '!n && /^## \[[0-9]/ { n = $2 } !n && /^- / { n = "unreleased" } END { print n }')
        [ "$newest" != "[$version]" ] || { baseline=$commit && break; }
    done
done
if [ -z "$baseline" ]; then
    echo "No commit of a release is known: name one" >&2
    exit 1
fi
PATH=$PATH:$target/tools/bin
if ! command -v cargo-semver-checks >/dev/null; then
    "$cargo" install --quiet --locked --root "$target/tools" "cargo-semver-checks@$checks"
fi
echo "compared with $(git log -1 --format='%h of %cs' "$baseline")"
packages=()
for list in crates/*/*/api.txt; do
    # A new crate has no earlier version.
    git cat-file -e "$baseline:$(dirname "$list")/Cargo.toml" 2>/dev/null || continue
    packages+=(--package "pagekeeper-$(basename "$(dirname "$list")")")
done
"$cargo" semver-checks check-release "${packages[@]}" --baseline-rev "$baseline"
