#!/bin/bash
# The first process in the machines of scripts/test-cgroup-v2.sh. Runs `guard`, `containers`, or `unit`; `unit` starts
# this script again as `unit_stories` under systemd.
. "$(dirname "$0")/guest.sh"
. "$(dirname "$0")/unit-guest.sh"

# Runs podman containers beside the guard and the doctor, and the guard in a container. STORIES limits it to tests with these words.
containers() {
    echo "guest: begins with Linux $(uname -r)"
    mount -t cgroup2 cgroup /sys/fs/cgroup
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir /dev/shm && mount -t tmpfs shm /dev/shm && chmod 1777 /dev/shm
    mkdir -p /dev/pts /dev/mqueue && mount -t devpts devpts /dev/pts
    mount -t tmpfs run /run
    mount -t tracefs tracefs /sys/kernel/tracing
    ip link set lo up
    podman --version
    crun --version | head -n 1
    cd "$SOURCE/crates/operate/cli" || ends
    # Each word is a filter.
    # shellcheck disable=SC2086
    PAGEKEEPER_REQUIRE_ALL=1 program host "$HOST" ${STORIES:-engine} --include-ignored --nocapture --test-threads=1 --color=never
    results
    ends
}

# Tests memory cgroups of the guard and of the crate `kernel`. This process stays in the root cgroup. STORIES limits it to these words.
guard() {
    echo "guest: begins with Linux $(uname -r)"
    mount -t cgroup2 cgroup /sys/fs/cgroup
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir /dev/shm && mount -t tmpfs shm /dev/shm && chmod 1777 /dev/shm
    ip link set lo up
    cd "$SOURCE/crates/base/kernel" || ends
    [ -n "$STORIES" ] || PAGEKEEPER_REQUIRE_ALL=1 program kernel "$KERNEL_TESTS" pressure::group --test-threads=1 --color=never
    cd "$SOURCE/crates/operate/cli" || ends
    # Each word is a filter.
    # shellcheck disable=SC2086
    PAGEKEEPER_REQUIRE_ALL=1 program host "$HOST" ${STORIES:-guard_cgroups} --include-ignored --nocapture --test-threads=1 --color=never
    # Where the kernel can reclaim file pages only, a program's anonymous memory stays although there is swap space.
    if [ "$(printf '%s\n' 6.9 "$(uname -r)" | sort --version-sort | head -n 1)" = 6.9 ]; then
        fallocate --length 512M /var/tmp/swap
        chmod 600 /var/tmp/swap
        mkswap --quiet /var/tmp/swap
        problem=""
        swapon /var/tmp/swap || problem="there is no swap space"
        PAGEKEEPER_REQUIRE_ALL=1 program swap "$HOST" a_group_that_is_named --include-ignored --nocapture --test-threads=1 --color=never
        # With another swappiness the kernel does swap it out.
        mkdir /sys/fs/cgroup/swapped
        # shellcheck disable=SC2016
        sh -c 'echo $$ >/sys/fs/cgroup/swapped/cgroup.procs; own=$(head -c 32M /dev/zero | tr "\0" x); kill -STOP $$' &
        sleep 10
        echo "16M swappiness=200" >/sys/fs/cgroup/swapped/memory.reclaim
        [ "$(cat /sys/fs/cgroup/swapped/memory.swap.current)" -gt 0 ] || problem+="nothing can be swapped out"
        result swap::a_program_that_rests_can_be_swapped_out "$problem"
        kill -KILL $!
        wait $!
        rmdir /sys/fs/cgroup/swapped
        swapoff /var/tmp/swap
    fi
    results
    ends
}

unit() {
    boots unit_stories
}

# Makes systemd start these stories and little else.
boots() {
    cat >/etc/systemd/system/stories.service <<END
[Unit]
Requires=dbus.service
After=dbus.service basic.target
[Service]
Type=oneshot
Environment=PAGEKEEPER=$PAGEKEEPER PACKAGES=$PACKAGES SOURCE=$SOURCE
ExecStart=$0 $1
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
END
    printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=stories.service\n' >/etc/systemd/system/default.target.new
    mv -f /etc/systemd/system/default.target.new /etc/systemd/system/default.target
    # tmp.mount would hide the sources, which may be in /tmp.
    ln -s /dev/null /etc/systemd/system/systemd-tmpfiles-setup.service
    : >/etc/fstab
    rm -f /etc/machine-id && echo 0123456789abcdef0123456789abcdef >/etc/machine-id
    exec /lib/systemd/systemd --show-status=false
}

"$1"
