# To be sourced, from the repository's root, with the file of test programs (scripts/test-programs.sh --with-packages) at "$logs/programs".
# Runs of test programs: as root in namespaces of their own where a guard must see no other story's database.

if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
    # A PID namespace with its own /proc; the shell takes in what their parents leave behind.
    own_processes=(unshare --pid --fork --kill-child --mount-proc -- sh -c '"$@"; exit $?' sh)
    if ! "${own_processes[@]}" true; then
        echo "No PID namespace can be made here: guards find databases of other stories, which may fail of it." >&2
        own_processes=()
    fi
else
    echo "Not root: tests that start a database under another user or mount an image will be skipped." >&2
    own_processes=()
fi

# The same random cases each time, so that a change is judged by itself; PROPTEST_RNG_SEED=N and PAGEKEEPER_SEED=N give others.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}
export PAGEKEEPER_SEED=${PAGEKEEPER_SEED:-20260101}

# programs NAME...: prints their lines; others NAME...: prints all lines but theirs.
programs() { grep --extended-regexp "/($(IFS='|' && echo "$*"))-[0-9a-f]+$" "$logs/programs"; }
others() { grep --invert-match --extended-regexp "/($(IFS='|' && echo "$*"))-[0-9a-f]+$" "$logs/programs"; }
# all_but MODULE...: prints the arguments that leave these modules out.
all_but() { printf -- '--skip %s ' "$@"; }

# Runs the test programs of these lines with the given arguments, started by the command in "starter". RUSTC_BOOTSTRAP lets a stable
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
# Runs a test program among processes of its own: a guard that it starts sees no other program's databases.
secluded() {
    local starter=("${own_processes[@]}")
    story "$@"
}

# Modules of tests/databases with guards for all databases, which have to see no others'.
all_databases=(containers:: discovery:: hint:: mariadb:: metrics:: mysql:: postgresql:: recycled::)
