#!/bin/bash
# What scripts/test-cgroup-v2.sh runs in its machines, as their first process: `topmost`, `guard`, `containers`, or `systemd` and `unit`, which
# start it again as `stories` and `unit_stories`.
. "$(dirname "$0")/guest.sh"
. "$(dirname "$0")/unit-guest.sh"

topmost() {
    echo "guest: begins with Linux $(uname -r)"
    mount -t cgroup2 cgroup /sys/fs/cgroup
    mkdir /dev/shm && mount -t tmpfs shm /dev/shm
    ip link set lo up
    cd "$SOURCE/crates/cli" || ends
    PAGEKEEPER_REQUIRE_ALL=1 program preload "$TESTS" group:: --test-threads=1 --color=never
    results
    ends
}

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
    cd "$SOURCE/crates/cli" || ends
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
    cd "$SOURCE/crates/kernel" || ends
    [ -n "$STORIES" ] || PAGEKEEPER_REQUIRE_ALL=1 program kernel "$KERNEL_TESTS" pressure::group --test-threads=1 --color=never
    cd "$SOURCE/crates/cli" || ends
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

systemd() {
    boots stories
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
    echo "user:x:65533:65534::/var/tmp:/bin/sh" >>/etc/passwd
    echo "user:*:19000:0:99999:7:::" >>/etc/shadow
    : >/etc/fstab
    rm -f /etc/machine-id && echo 0123456789abcdef0123456789abcdef >/etc/machine-id
    exec /lib/systemd/systemd --show-status=false
}

# story NAME nothing|all COMMAND...: what a static copy leaves in the page cache where COMMAND starts `pagekeeper run`. No group may stay, and
# one line says so where there was none.
story() {
    local name=$1 expected=$2 problem="" said resident
    shift 2
    rm -f target
    sync
    echo 1 >/proc/sys/vm/drop_caches
    said=$("$@" "$PAGEKEEPER" run -- busybox cp source target 2>&1) || problem="it failed; "
    for _ in $(seq 50); do
        [ -n "$(find /sys/fs/cgroup -name 'pagekeeper-*')" ] || break
        sleep 0.2
    done
    resident=$(fincore --bytes --noheadings --output RES source target | awk '{ sum += $1 } END { print sum + 0 }')
    [ -z "$(find /sys/fs/cgroup -name 'pagekeeper-*')" ] || problem+="a group stays; "
    cmp --quiet source target || problem+="the copy differs; "
    case $expected in
        nothing) [ "$resident" -lt $((8 << 20)) ] || problem+="$resident bytes are resident; " ;;
        all) [ "$resident" -gt $((400 << 20)) ] || problem+="$resident bytes are resident; " ;;
    esac
    case $expected/$said in
        nothing/ | all/*"linked statically"*) ;;
        *) problem+="it wrote: $said" ;;
    esac
    result "systemd::$name" "$problem"
}

as_user() {
    setpriv --reuid 65533 --regid 65534 --clear-groups env XDG_RUNTIME_DIR=/run/user/65533 "$@"
}

stories() {
    echo "guest: begins with $(systemctl --version | head -1)"
    mkdir /var/tmp/stories && cd /var/tmp/stories || ends
    dd if=/dev/urandom of=source bs=1M count=256 status=none
    story root_in_a_service all env
    story root_in_a_scope nothing systemd-run --quiet --scope --slice=user-0.slice
    story a_service_that_may_have_groups nothing systemd-run --quiet --wait --pipe --property=Delegate=yes --working-directory="$PWD"
    story a_scope_of_little_memory nothing systemd-run --quiet --scope --property=MemoryMax=200M
    systemctl start user@65533.service
    chown -R 65533 .
    export -f as_user
    story a_user_in_a_session nothing systemd-run --quiet --scope --slice=user-65533.slice bash -c 'as_user "$@"' bash
    story a_user_in_a_scope nothing as_user systemd-run --user --quiet --scope
    story a_user_in_a_service all as_user env
    results
    ends
}

"$1"
