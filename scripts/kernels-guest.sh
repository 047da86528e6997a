#!/bin/bash
# The first process in the machines of scripts/test-kernels.sh. Runs `tour`, with unit tests, or `small`. Environment:
# PAGEKEEPER, the program; UNIT_TESTS, test programs with their arguments for libtest, separated by ";".
. "$(dirname "$0")/guest.sh"

echo "guest: begins with Linux $(uname -r), $(uname -m), pages of $(($(getconf PAGESIZE) >> 10)) KiB"
mount -t cgroup2 cgroup /sys/fs/cgroup
# Tests create cgroups with a limit, and the tour checks for memory.reclaim. This process stays in the root cgroup.
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mkdir -p /dev/shm /dev/pts /mnt/xfs && mount -t tmpfs shm /dev/shm && mount -t devpts devpts /dev/pts
ln -sfn /proc/self/fd /dev/fd
ip link set lo up
# /tmp is on the overlay, whose pages belong to a tmpfs.
export TMPDIR=/var/tmp
cd "$SOURCE" || ends

# XFS has features that ext4 lacks; used if its module and tools are available.
if command -v mkfs.xfs >/dev/null; then
    truncate --size 1G /var/tmp/xfs.image
    if ! { mkfs.xfs -q /var/tmp/xfs.image && mount -o loop /var/tmp/xfs.image /mnt/xfs; }; then
        echo "XFS: not tested, since it can't be mounted here"
    fi
fi

# Shows only the SKIPPED lines of passed tests.
unit_tests() { # a program of tests and its words
    timeout 600 "$@" --color=never --show-output 2>&1 | sed --unbuffered --regexp-extended '
        /^successes:$/,/^(failures:$|test result: )/ {
            /^(failures:$|test result: )/b
            s/^SKIPPED: /&on Linux '"$(uname -r)"': /
            t
            d
        }'
    return "${PIPESTATUS[0]}"
}

[ "$1" != small ] || UNIT_TESTS=""
IFS=';' read -ra tests <<<"$UNIT_TESTS"
for words in "${tests[@]}"; do
    read -ra words <<<"$words"
    echo "unit tests: $(basename "${words[0]}") ${words[*]:1}"
    began=$SECONDS
    cd "$SOURCE/crates/operate/cli" || ends
    program "$(basename "${words[0]}")" unit_tests "${words[@]}"
    cd "$SOURCE" || ends
    echo "took $((SECONDS - began)) s"
done
mkdir /sys/fs/cgroup/tour
began=$SECONDS
program "kernels-$1.py" python3 "scripts/kernels-$1.py" /var/tmp/tour
echo "took $((SECONDS - began)) s"
dmesg | grep WARNING | head
result "the kernel has nothing to complain of" "$(dmesg | grep -E 'BUG|Oops|hung' | head)"
results
ends
