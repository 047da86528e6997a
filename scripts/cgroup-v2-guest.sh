#!/bin/bash
# What scripts/test-cgroup-v2.sh runs in its machines, as their first process: `guard`, `containers`, or `unit`, which starts it again as
# `unit_stories`.
. "$(dirname "$0")/guest.sh"
. "$(dirname "$0")/unit-guest.sh"

# Containers of podman, beside the guard and the doctor, and the guard in one. Or STORIES alone, words of names.
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

# The guard's memory cgroups, and those that the kernel crate reads; this process stays in the topmost. Or STORIES alone, words of names.
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
    # Where the kernel can be asked to reclaim files alone, a program's own memory stays although there is room to swap it out to.
    if [ "$(printf '%s\n' 6.9 "$(uname -r)" | sort --version-sort | head -n 1)" = 6.9 ]; then
        fallocate --length 512M /var/tmp/swap
        chmod 600 /var/tmp/swap
        mkswap --quiet /var/tmp/swap
        problem=""
        swapon /var/tmp/swap || problem="there is no swap space"
        PAGEKEEPER_REQUIRE_ALL=1 program swap "$HOST" a_group_that_is_named --include-ignored --nocapture --test-threads=1 --color=never
        # And would go there, if the kernel were asked otherwise.
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

# Has systemd begin with these stories and little else.
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
    # It would empty /tmp, where the sources may be.
    ln -s /dev/null /etc/systemd/system/systemd-tmpfiles-setup.service
    : >/etc/fstab
    rm -f /etc/machine-id && echo 0123456789abcdef0123456789abcdef >/etc/machine-id
    exec /lib/systemd/systemd --show-status=false
}

"$1"
