#!/bin/bash
# What scripts/test-kernels.sh runs in its machines, as their first process: `tour`, with unit tests, or `small`. In the environment:
# PAGEKEEPER, the program; UNIT_TESTS, programs of tests, each with the words after it that libtest takes, parted by ";".
. "$(dirname "$0")/guest.sh"

echo "guest: begins with Linux $(uname -r), $(uname -m), pages of $(($(getconf PAGESIZE) >> 10)) KiB"
mount -t cgroup2 cgroup /sys/fs/cgroup
# Tests make groups with a limit, and the tour looks whether they have memory.reclaim. This stays in the topmost one.
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mkdir -p /dev/shm /dev/pts /mnt/xfs && mount -t tmpfs shm /dev/shm && mount -t devpts devpts /dev/pts
ln -sfn /proc/self/fd /dev/fd
ip link set lo up
# /tmp is on the overlay, whose pages are those of a tmpfs.
export TMPDIR=/var/tmp
cd "$SOURCE" || ends

# XFS, for what ext4 lacks, where its module and its tools are here.
if command -v mkfs.xfs >/dev/null; then
    truncate --size 1G /var/tmp/xfs.image
    if ! { mkfs.xfs -q /var/tmp/xfs.image && mount -o loop /var/tmp/xfs.image /mnt/xfs; }; then
        echo "XFS: not tried, since it can't be mounted here"
    fi
fi

# Of what tests that passed have printed it shows what they skipped on this kernel.
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
