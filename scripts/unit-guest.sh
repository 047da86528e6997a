# Tests of the machine `unit` of scripts/cgroup-v2-guest.sh under a real systemd. To be sourced. Installs the package;
# starts, stops, reloads and hangs its service, with each of the drop-ins; and starts a MariaDB under `pagekeeper run`.
# Then starts the image with podman as in the manual, and installs the rpm, whose scripts do the work of debhelper's.
# $PACKAGES is a directory with these packages, and with packages of a higher revision; mariadb.service is that of
# Debian's package.

unit=pagekeeper-guard.service

# show PROPERTY [UNIT]
show() {
    systemctl show --property="$1" --value "${2:-$unit}"
}

# within TIMES COMMAND...: repeats a command up to TIMES times, at least a second apart, until it succeeds.
within() {
    local left=$1
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 1
    done
}

# said PATTERN: whether the log of the service's current run has a match.
said() {
    journalctl --quiet --output=cat _SYSTEMD_INVOCATION_ID="$(show InvocationID)" | grep --quiet --extended-regexp "$1"
}

# unit_story NAME FUNCTION: runs a story; FUNCTION prints only problems.
unit_story() {
    local problem
    problem=$("$2" 2>&1) || problem+="; it ended with $?"
    result "unit::$1" "$problem"
    [ -z "$problem" ] || journalctl --quiet --output=cat --lines=15 --unit="$unit" --unit=mariadb.service
}

installed() {
    dpkg --install "$PACKAGES/pagekeeper.deb" >/var/tmp/installed 2>&1 || { cat /var/tmp/installed; return; }
    [ "$(systemctl is-enabled $unit)" = disabled ] || echo "it was enabled"
    [ "$(show ActiveState)" = inactive ] || echo "it was started"
}

started() {
    systemctl start $unit || { echo "it does not start"; return; }
    [ "$(show ActiveState)/$(show SubState)/$(show Type)" = active/running/notify ] || systemctl status --no-pager $unit
    local status
    status=$(cat "/proc/$(show MainPID)/status")
    # Only CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_SYS_PTRACE.
    for line in 'CapEff:	000000000008000c' 'CapBnd:	000000000008000c' 'NoNewPrivs:	1' 'Seccomp:	2'; do
        grep --quiet "^$line\$" <<<"$status" || echo "$line is missing: $status"
    done
    ! grep --quiet '^Uid:	0' <<<"$status" || echo "it runs as root"
}

scored() {
    local said
    said=$(systemd-analyze security --threshold=25 --no-pager $unit 2>&1) || tail -n 1 <<<"$said"
    tail -n 1 <<<"$said" >&3
}

released() {
    systemctl start mariadb.service || { echo "mariadb does not start"; return; }
    fill
    within 240 said "watching mariadb \(process $(show MainPID mariadb.service)\)" || echo "the server is not found"
    within 240 logs_are_small || echo "logs stay: $(resident) bytes"
}

fill() {
    local round
    for round in $(seq 24); do
        mariadb --execute "INSERT INTO d.t VALUES (REPEAT('x', 1048576)); DELETE FROM d.t" || return
    done
}

resident() {
    fincore --bytes --noheadings --output RES /var/lib/mysql/binlog.0* | awk '{ sum += $1 } END { print sum + 0 }'
}

logs_are_small() {
    [ "$(resident)" -lt $((10 << 20)) ]
}

reloaded() {
    local pid
    pid=$(show MainPID)
    cp /etc/pagekeeper/guard.toml /var/tmp/guard.toml
    echo 'tick = "soon"' >/etc/pagekeeper/guard.toml
    systemctl reload $unit || echo "reload fails"
    within 240 said "the configuration stays as it was: " || echo "a bad configuration is not refused"
    cp /var/tmp/guard.toml /etc/pagekeeper/guard.toml
    systemctl reload $unit || echo "reload fails"
    # It becomes ready again, and continues.
    within 240 runs || echo "it is $(show ActiveState), $(show SubState)"
    [ "$(show MainPID)" = "$pid" ] || echo "it was restarted"
    fill
    within 240 logs_are_small || echo "logs stay: $(resident) bytes"
}

stopped() {
    local run
    run=$(show InvocationID)
    systemctl stop $unit || echo "it does not stop"
    [ "$(show ActiveState)/$(show Result)" = inactive/success ] || systemctl status --no-pager $unit
    journalctl --quiet --output=cat _SYSTEMD_INVOCATION_ID="$run" | grep --quiet '^released .* ticks' || echo "it prints no summary"
}

# A hung guard is killed and restarted.
hung() {
    mkdir -p /run/systemd/system/$unit.d
    printf '[Service]\nWatchdogSec=90s\nRestartSec=1s\n' >/run/systemd/system/$unit.d/test.conf
    systemctl daemon-reload
    systemctl start $unit || { echo "it does not start"; return; }
    local pid before
    pid=$(show MainPID)
    before=$(show WatchdogTimestampMonotonic)
    within 80 is_later "$before" || echo "it sends no keepalive"
    [ "$(show MainPID)" = "$pid" ] || echo "it was killed although alive"
    kill -STOP "$pid"
    within 200 is_another "$pid" || echo "it hangs and is not restarted: $(show ActiveState)"
    [ "$(show NRestarts)" -ge 1 ] || echo "it was not restarted"
    journalctl --quiet --output=cat --unit=$unit | grep --quiet "Failed with result 'watchdog'" || echo "not because of the watchdog"
    rm /run/systemd/system/$unit.d/test.conf
    systemctl daemon-reload
    systemctl restart $unit
}

is_later() {
    [ "$(show WatchdogTimestampMonotonic)" != "$1" ]
}

runs() {
    [ "$(show ActiveState)/$(show SubState)" = active/running ]
}

is_another() {
    [ "$(show MainPID)" != "$1" ] && runs
}

with_metrics() {
    drop_in $unit metrics.conf
    systemctl restart $unit || { echo "it does not start"; return; }
    scored
    within 240 has_metrics || echo "no metrics: $(busybox wget -q -O - http://127.0.0.1:9417/metrics 2>&1 | head -n 3)"
    rm /etc/systemd/system/$unit.d/metrics.conf
    systemctl daemon-reload
}

has_metrics() {
    busybox wget -q -O - http://127.0.0.1:9417/metrics | grep --quiet '^pagekeeper_.*engine="mariadb"'
}

# With [cgroup] on a service's cgroup, the pages of a cold table are released.
with_cgroup() {
    drop_in $unit cgroup.conf
    drop_in_text mariadb.service limit '[Service]\nMemoryMax=400M\nMemoryHigh=380M\n'
    systemctl restart mariadb.service || { echo "mariadb does not start"; return; }
    mariadb --execute "USE d; SET SESSION sql_log_bin = 0; CREATE OR REPLACE TABLE d.cold (v CHAR(240) CHARACTER SET latin1) ENGINE=MyISAM;
        INSERT INTO d.cold SELECT REPEAT('x', 240) FROM seq_1_to_400000" || echo "no table"
    printf '\n[cgroup]\ngroups = ["/system.slice/mariadb.service"]\nshare = "10%%"\nreclaim = "file"\ntick = "1s"\n' >>/etc/pagekeeper/guard.toml
    systemctl restart $unit || { echo "it does not start"; return; }
    scored
    local before after
    before=$(cached)
    within 150 has_shrunk $((44 << 20)) || echo "page cache stays"
    after=$(cached)
    echo "page cache of mariadb.service: $before, then $after bytes" >&3
    [ "$before" -gt $((80 << 20)) ] || echo "only $before bytes of page cache before"
    ! said "may not be written" || echo "it may not write memory.reclaim"
    cp /var/tmp/guard.toml /etc/pagekeeper/guard.toml
    rm /etc/systemd/system/$unit.d/cgroup.conf /etc/systemd/system/mariadb.service.d/limit.conf
    systemctl daemon-reload
    systemctl restart $unit
}

cached() {
    awk '$1 == "file" { file = $2 } $1 == "shmem" { file -= $2 } END { print file }' /sys/fs/cgroup/system.slice/mariadb.service/memory.stat
}

has_shrunk() {
    [ "$(cached)" -lt "$1" ]
}

# drop_in UNIT FILE: installs one of the package's examples at the destination that it names.
drop_in() {
    mkdir -p "/etc/systemd/system/$1.d"
    cp "/usr/share/doc/pagekeeper/$2" "/etc/systemd/system/$1.d/"
    systemctl daemon-reload
}

drop_in_text() {
    mkdir -p "/etc/systemd/system/$1.d"
    # shellcheck disable=SC2059
    printf "$3" >"/etc/systemd/system/$1.d/$2.conf"
    systemctl daemon-reload
}

# With the drop-in and without the guard, the server releases its own pages.
under_run() {
    systemctl stop $unit
    drop_in mariadb.service run/mariadb.conf
    systemctl restart mariadb.service || { echo "mariadb does not start"; return; }
    local pid
    pid=$(show MainPID mariadb.service)
    [ "$(cat "/proc/$pid/comm")" = mariadbd ] || echo "its process is $(cat "/proc/$pid/comm")"
    grep --quiet libpagekeeper "/proc/$pid/maps" || echo "the library is not loaded"
    fill
    within 240 logs_are_small || echo "logs stay: $(resident) bytes"
    [ "$(mariadb --batch --skip-column-names --execute 'SELECT COUNT(*) FROM d.t')" = 0 ] || echo "the table holds something else"
    rm /etc/systemd/system/mariadb.service.d/mariadb.conf
    systemctl daemon-reload
    systemctl restart mariadb.service || echo "mariadb does not start without it"
}

# The backup by its service and timer: complete, and not left in the page cache.
backed_up() {
    mkdir -p /var/tmp/backups /var/backups
    mount --bind /var/tmp/backups /var/backups
    local backup=pagekeeper-mariabackup directory left
    cp /usr/share/doc/pagekeeper/run/$backup.{service,timer} /etc/systemd/system/
    systemctl daemon-reload
    systemctl enable --quiet --now $backup.timer
    [ -n "$(show NextElapseUSecRealtime $backup.timer)" ] || echo "its timer never comes"
    systemctl start $backup.service || echo "it fails"
    journalctl --sync
    journalctl --quiet --output=cat --unit=$backup.service >/var/tmp/backup.log
    grep --quiet 'completed OK!' /var/tmp/backup.log || echo "no backup: $(tail -n 5 /var/tmp/backup.log)"
    directory=$(echo /var/backups/mariadb/*)
    [ -s "$directory/ibdata1" ] || echo "there is nothing in $directory"
    left=$(find "$directory" -type f -exec fincore --bytes --noheadings --output RES {} + | awk '{ sum += $1 } END { print sum + 0 }')
    [ "$left" -lt $((2 << 20)) ] || echo "of the backup $left bytes stay: $(tail -n 5 /var/tmp/backup.log)"
    systemctl disable --quiet --now $backup.timer
    rm /etc/systemd/system/$backup.{service,timer}
    systemctl daemon-reload
}

# The image, by the manual's command; there is no network here.
image_by_podman() {
    systemctl stop $unit
    local command
    read -ra command < <(sed -n 's/^# podman run //p' "$SOURCE/docs/src/install.md")
    podmans load --quiet --input "$PACKAGES/image.tar" >/dev/null || { echo "podman does not load it"; return; }
    podmans run --detach --name guard --network=none "${command[@]}" >/dev/null || { echo "it does not start: podman run ${command[*]}"; return; }
    fill
    within 240 logs_are_small || echo "logs stay: $(resident) bytes"
    podmans logs guard 2>&1 | grep --quiet "watching mariadb (process $(show MainPID mariadb.service))" || echo "the server is not found"
    podmans rm --force --time=20 guard >/dev/null || echo "it does not end"
}

podmans() {
    podman --root /var/tmp/podman --runroot /run/podman --storage-driver=overlay --runtime=crun --log-level=error --events-backend=none "$@"
}

# A running service is another after an upgrade, one that is neither enabled nor runs stays so, and there is none after removal.
upgraded() {
    systemctl start $unit
    local pid
    pid=$(show MainPID)
    dpkg --install "$PACKAGES/higher.deb" >/var/tmp/installed 2>&1 || cat /var/tmp/installed
    within 240 is_another "$pid" || echo "the old one runs on: $(show ActiveState)"
    systemctl stop $unit
    dpkg --install "$PACKAGES/pagekeeper.deb" >/var/tmp/installed 2>&1 || cat /var/tmp/installed
    [ "$(show ActiveState)" = inactive ] || echo "it was started though it is not enabled"
    systemctl enable --quiet $unit
    dpkg --install "$PACKAGES/higher.deb" >/var/tmp/installed 2>&1 || cat /var/tmp/installed
    [ "$(show ActiveState)" = active ] || echo "it is enabled, and not started"
    dpkg --purge pagekeeper >/var/tmp/installed 2>&1 || cat /var/tmp/installed
    ! pidof pagekeeper >/dev/null || echo "it runs without its package"
}

# The rpm's scripts, run by rpm: what is installed is neither enabled nor started; a running service is another after an upgrade, one that was
# stopped stays so; and one is stopped and disabled when its package goes.
by_rpm() {
    local pid
    rpm --initdb --dbpath /var/tmp/rpm
    rpms --install "$PACKAGES/pagekeeper.rpm" || echo "it is not installed"
    [ "$(systemctl is-enabled $unit)" = disabled ] || echo "it was enabled"
    [ "$(show ActiveState)" = inactive ] || echo "it was started"
    [ "$(show NeedDaemonReload)" = no ] || echo "systemd was not reloaded"
    systemctl enable --quiet --now $unit || echo "it does not start"
    pid=$(show MainPID)
    rpms --upgrade "$PACKAGES/higher.rpm" || echo "it is not upgraded"
    within 240 is_another "$pid" || echo "the old one runs on: $(show ActiveState)"
    [ "$(show NeedDaemonReload)" = no ] || echo "systemd was not reloaded by the upgrade"
    [ "$(systemctl is-enabled $unit)" = enabled ] || echo "an upgrade disabled it"
    systemctl stop $unit
    rpms --upgrade --oldpackage "$PACKAGES/pagekeeper.rpm" || echo "it is not set back"
    [ "$(show ActiveState)" = inactive ] || echo "an upgrade started what was stopped"
    systemctl start $unit || echo "it does not start again"
    rpms --erase pagekeeper || echo "it is not erased"
    ! pidof pagekeeper >/dev/null || echo "it runs without its package"
    [ -z "$(find /etc/systemd/system -name "$unit")" ] || echo "it stays enabled"
    [ "$(show LoadState)" = not-found ] || echo "systemd still knows it"
    # As in an image that is made: no systemd runs there, and what is enabled is a link.
    rpms --install "$PACKAGES/pagekeeper.rpm" || echo "it is not installed again"
    systemctl enable --quiet $unit
    unshare --mount sh -c 'mount -t tmpfs none /run && "$@"' sh rpm --dbpath /var/tmp/rpm --nodeps --force-debian --erase pagekeeper ||
        echo "it is not erased where no systemd runs"
    [ -z "$(find /etc/systemd/system -name "$unit")" ] || echo "without systemd it stays enabled"
}

# Debian has an rpm, but knows of no package that one requires.
rpms() {
    rpm --dbpath /var/tmp/rpm --nodeps --force-debian "$@"
}

unit_stories() {
    echo "guest: begins with $(systemctl --version | head -1)"
    exec 3>&1
    export SYSTEMD_PAGER=cat SYSTEMD_COLORS=0
    rm -f /usr/sbin/policy-rc.d
    # An index of all manuals takes an emulated machine minutes.
    rm -f /var/lib/man-db/auto-update
    # The machine did not do that at its start.
    systemd-tmpfiles --create mariadb.conf
    # The server's data on the machine's own disk.
    mkdir -p /var/tmp/mysql /etc/mysql/mariadb.conf.d
    mount --bind /var/tmp/mysql /var/lib/mysql
    printf '[mariadbd]\nlog_bin=binlog\nbinlog_format=ROW\nsync_binlog=1\nmax_binlog_size=16M\ninnodb_buffer_pool_size=64M\ninnodb_log_file_size=16M\nskip_networking\n' \
        >/etc/mysql/mariadb.conf.d/99-test.cnf
    mariadb-install-db --user=mysql --skip-test-db >/var/tmp/mysql-installed 2>&1 || cat /var/tmp/mysql-installed
    systemctl start mariadb.service && mariadb --execute "CREATE DATABASE d; CREATE TABLE d.t (v LONGBLOB)"
    systemctl stop mariadb.service
    unit_story installed installed
    unit_story started_and_ready started
    unit_story hardened scored
    unit_story a_server_is_found_and_its_logs_are_released released
    unit_story reloaded reloaded
    unit_story stopped_with_a_summary stopped
    unit_story hung_and_started_again hung
    unit_story with_metrics with_metrics
    unit_story with_cgroup with_cgroup
    unit_story mariadb_under_run under_run
    unit_story backup_by_its_service backed_up
    unit_story image_by_podman image_by_podman
    unit_story upgraded_and_purged upgraded
    unit_story rpm_installed_upgraded_and_erased by_rpm
    results
    ends
}
