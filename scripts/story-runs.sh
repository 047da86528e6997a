# Functions that build and run test programs, as root in their own namespaces where a guard must not see databases of other
# stories. To be sourced from the repository's root, with the list of test programs (scripts/test-programs.sh
# --with-packages) in "$logs/programs".

if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
    # A PID namespace with its own /proc; the shell adopts orphans.
    own_processes=(unshare --pid --fork --kill-child --mount-proc -- sh -c '"$@"; exit $?' sh)
    if ! "${own_processes[@]}" true; then
        echo "A PID namespace can't be created: guards see databases of other stories, and tests may fail." >&2
        own_processes=()
    fi
else
    echo "Not root: tests that start a database under another user or mount an image will be skipped." >&2
    own_processes=()
fi

# Fixed seeds, so that only a change makes a difference; PROPTEST_RNG_SEED=N and PAGEKEEPER_SEED=N set others.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}
export PAGEKEEPER_SEED=${PAGEKEEPER_SEED:-20260101}

# Clippy compiles the workspace's crates, so that none is compiled again to be linted. A warning is an error. The programs
# differ a little from rustc's: "Why it builds once" in docs/src/internals/testing.md.
linted() { RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings "$@"; }

# programs NAME...: prints the lines of these programs. others NAME...: prints all other lines.
programs() { grep --extended-regexp "/($(IFS='|' && echo "$*"))-[0-9a-f]+$" "$logs/programs"; }
others() { grep --invert-match --extended-regexp "/($(IFS='|' && echo "$*"))-[0-9a-f]+$" "$logs/programs"; }
# all_but MODULE...: prints the arguments that leave these modules out.
all_but() { printf -- '--skip %s ' "$@"; }

# Runs the test programs listed on stdin with the given arguments, by the command in "starter". RUSTC_BOOTSTRAP lets a stable
# compiler's test programs show the time of each test.
starter=()
run() {
    local kind directory program failed=0
    while IFS=$'\t' read -r kind directory program; do
        echo "     Running $kind $program"
        (cd "$directory" && RUSTC_BOOTSTRAP=1 exec "${starter[@]}" "$program" -Z unstable-options --report-time --show-output "$@" </dev/null) || failed=$?
    done
    return "$failed"
}
story() { programs "$1" | run "${@:2}"; }
# Runs a test program in its own PID namespace, so that its guards see no databases of other programs.
secluded() {
    local starter=("${own_processes[@]}")
    story "$@"
}

# Modules of tests/databases whose guards watch all databases, and must not see those of other tests.
all_databases=(containers:: discovery:: hint:: mariadb:: metrics:: mysql:: postgresql:: recycled::)
