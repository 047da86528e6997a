#!/usr/bin/env bash
# measure-recovery.sh postgresql|mariadb|mariadb-buffered [ROUNDS] [MB_PER_SECOND] — measures the guard's effect on
# crash recovery.
#
# Loads a server, kills it by SIGKILL under load once LOG_MB of log (512) lie behind its checkpoint, and starts it
# again: without the guard, beside the guard with its defaults, and beside one with the rule release-before-checkpoint
# for logs. Each case runs with the table files in the page cache as the crash left them (warm), and with them evicted
# (cold). The cases alternate, for ROUNDS rounds (3). Reports the seconds until the server answers a query, the bytes
# that its processes read from the device until then, and the resident bytes of its logs: median, minimum and maximum.
#
# With MB_PER_SECOND, all data is on its own disk image, whose reads are limited to that rate (cgroup version 1). Needs
# root. Builds nothing: PAGEKEEPER names the program (target/release/pagekeeper).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${IDLE_PAGES_KEPT:-}" ]; then
    IDLE_PAGES_KEPT=1 exec scripts/keep-idle-pages.sh "scripts/$(basename "$0")" "$@"
fi

kind=${1:?postgresql, mariadb or mariadb-buffered}
rounds=${2:-3}
rate=${3:-}
log_mb=${LOG_MB:-512}
pagekeeper=$(realpath "${PAGEKEEPER:-target/release/pagekeeper}")
case $kind in
postgresql) bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1) owner=postgres ;;
mariadb | mariadb-buffered) owner=mysql ;;
*) echo "no such database: $kind" >&2 && exit 2 ;;
esac

scratch=$(mktemp -d "${TMPDIR:-/tmp}/recovery.XXXXXX")
chmod 755 "$scratch"
place=$scratch/place
mkdir "$place"
server= guard= load= device= throttle=/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device

finish() {
    for pid in $guard $load $server; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    if [ -n "$device" ]; then
        echo "$number 0" >"$throttle" || true
        for _ in {1..50}; do umount "$place" 2>/dev/null && break || sleep 0.2; done
        losetup --detach "$device" || true
    fi
    rm -rf "$scratch"
}
trap finish EXIT

if [ -n "$rate" ]; then
    [ -w "$throttle" ] || { echo "SKIPPED: this host has no blkio controller of cgroup version 1" >&2; exit 0; }
    truncate -s 12G "$scratch/image"
    mkfs.ext4 -q "$scratch/image"
    device=$(losetup --find --show --direct-io=on "$scratch/image")
    mount "$device" "$place"
    number=$(lsblk --noheadings --nodeps --output MAJ:MIN "$device" | tr -d ' ')
fi
throttled() { [ -z "$device" ] || echo "$number $1" >"$throttle"; }
data=$place/data
mkdir "$data"
chown -R "$owner": "$place"
as=(setpriv --reuid="$owner" --regid="$owner" --init-groups)
now() { date +%s.%N; }

# Functions of each database: make, serve, query, log_mb_behind, clean_up, write_load, logs, tables.
case $kind in
postgresql)
    make_it() { "${as[@]}" "$bin/initdb" --auth=trust --no-sync --no-locale --pgdata "$data" >/dev/null; }
    serve() {
        "${as[@]}" "$bin/postgres" -D "$data" -k "$place" -c listen_addresses= -c max_wal_size=4GB -c checkpoint_timeout=1h \
            -c shared_buffers=128MB -c autovacuum=off >>"$scratch/log" 2>&1 &
        server=$!
    }
    query() { "$bin/psql" -h "$place" -U postgres -X -q -A -t -c "$1" postgres 2>>"$scratch/log"; }
    fill() { "$bin/pgbench" -h "$place" -U postgres --initialize --quiet --scale=20 postgres >/dev/null 2>&1; }
    behind() { query 'SELECT (pg_current_wal_lsn() - redo_lsn)::bigint >> 20 FROM pg_control_checkpoint()'; }
    clean_up() { query 'CHECKPOINT'; }
    write_load() {
        # shellcheck disable=SC2016
        printf '%s\n' '\set first random(1, 1990000)' \
            'UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid BETWEEN :first AND :first + 200;' >"$scratch/load.sql"
        exec "$bin/pgbench" -h "$place" -U postgres --no-vacuum --client=2 --time=600 --file="$scratch/load.sql" postgres >/dev/null 2>&1
    }
    logs() { find "$data/pg_wal" -maxdepth 1 -type f; }
    tables() { echo "$data/base"; }
    processes() { echo "$server" && pgrep --parent "$server"; }
    ;;
mariadb*)
    buffering=OFF
    [ "$kind" = mariadb ] || buffering=ON
    make_it() { "${as[@]}" mariadb-install-db --no-defaults --datadir="$data" --auth-root-authentication-method=normal >/dev/null 2>&1; }
    serve() {
        "${as[@]}" mariadbd --no-defaults --datadir="$data" --socket="$place/socket" --skip-networking --innodb-log-file-size=2G \
            --innodb-log-file-buffering=$buffering --innodb-buffer-pool-size=512M --innodb-max-dirty-pages-pct=99 \
            --innodb-adaptive-flushing=OFF --log-bin="$data/binlog" --log-bin-index="$data/binlog.index" \
            --pid-file="$data/pid" >>"$scratch/log" 2>&1 &
        server=$!
    }
    query() { mariadb --no-defaults -S "$place/socket" -u root -N -B -e "$1" 2>>"$scratch/log"; }
    fill() { query "CREATE DATABASE shop; CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, k INT, v VARCHAR(2000))"; }
    behind() {
        query 'SHOW ENGINE INNODB STATUS' | sed 's/\\n/\n/g' |
            awk '/^Log sequence number/ { lsn = $4 } /^Last checkpoint at/ { print int((lsn - $4) / 1048576) }'
    }
    clean_up() {
        query 'TRUNCATE shop.t; RESET MASTER; SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, innodb_max_dirty_pages_pct = 0'
        for _ in {1..600}; do [ "$(behind)" -gt 2 ] || break; sleep 0.2; done
        query 'SET GLOBAL innodb_max_dirty_pages_pct = 99'
    }
    write_load() {
        local row="INSERT INTO t (k, v) SELECT seq, REPEAT(MD5(RAND()), 40) FROM seq_1_to_100;"
        yes "$row" | mariadb --no-defaults -S "$place/socket" -u root shop >/dev/null 2>&1
    }
    logs() { find "$data" -maxdepth 1 -type f \( -name 'ib_logfile*' -o -name 'binlog.0*' -o -name 'aria_log.0*' \); }
    tables() { find "$data" -maxdepth 1 \( -name shop -o -name ibdata1 -o -name 'undo*' \); }
    processes() { echo "$server"; }
    ;;
esac

wait_until_it_answers() {
    for _ in {1..30000}; do
        [ "$(query 'SELECT 1' || true)" = 1 ] && return
        kill -0 "$server" 2>/dev/null || { tail -5 "$scratch/log" >&2; exit 1; }
        sleep 0.02
    done
    exit 1
}
resident_mb() { logs | xargs fincore --bytes --noheadings --output RES | awk '{ sum += $1 } END { printf "%.0f", sum / 1048576 }'; }
# Includes children that the server has waited for, such as PostgreSQL's startup process.
read_mb() { awk '/^read_bytes/ { printf "%.0f", $2 / 1048576 }' "/proc/$server/io"; }

printf '[rules.wal]\nrule = "release-before-checkpoint"\n[rules.redo]\nrule = "release-before-checkpoint"\n[rules.binlog]\nrule = "release-before-checkpoint"\n' >"$scratch/checkpoint.toml"

# Runs one crash. $1 is none, guard or checkpoint; $2 is warm or cold.
crash() {
    clean_up >/dev/null
    guard=
    case $1 in
    guard) "$pagekeeper" guard --pid "$server" --json >"$scratch/guard" 2>&1 & guard=$! ;;
    checkpoint) "$pagekeeper" guard --pid "$server" --json --config "$scratch/checkpoint.toml" >"$scratch/guard" 2>&1 & guard=$! ;;
    esac
    write_load &
    load=$!
    local log=0 disturbed=
    for _ in {1..6000}; do
        # Another guard on this machine would release pages, too.
        if pgrep --full --list-full 'pagekeeper guard' | grep --quiet --invert-match -e --pid -e --dir; then disturbed=1; fi
        log=$(behind)
        [ "$log" -lt "$log_mb" ] || break
        sleep 0.1
    done
    local pid all
    all=$(processes)
    # shellcheck disable=SC2086
    kill -KILL $all $guard "$load" 2>/dev/null || true
    wait 2>/dev/null || true
    guard= load=
    for pid in $all; do
        for _ in {1..200}; do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
    done
    # shellcheck disable=SC2046
    [ "$2" = warm ] || "$pagekeeper" evict $(tables) >/dev/null
    local resident begun
    resident=$(resident_mb)
    throttled $((${rate:-0} << 20))
    begun=$(now)
    serve
    wait_until_it_answers
    local seconds
    seconds=$(awk -v a="$begun" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }')
    throttled 0
    if [ -n "$disturbed" ]; then
        echo "another guard was running: repeating this round" >&2
        return 1
    fi
    echo "$1 $2 $seconds $(read_mb) $resident $log $(cut -d' ' -f1 /proc/loadavg)" | tee -a "$scratch/rounds" >&2
}

make_it
serve
wait_until_it_answers
fill
echo "guard tables seconds read_mb resident_mb log_mb load" >&2
for _ in $(seq "$rounds"); do
    for tables in warm cold; do
        for mode in none guard checkpoint; do
            for _ in {1..9}; do ! crash $mode $tables || break; done
        done
    done
done

echo "$kind, ${rate:+reads held to $rate MB/s, }$rounds rounds: median (least-most)"
printf '%-12s %-6s %-20s %-20s %-20s %s\n' guard tables seconds "MB read" "MB of logs resident" "MB of log"
for tables in warm cold; do
    for mode in none guard checkpoint; do
        row=$(printf '%-12s %-6s' $mode $tables)
        for column in 3 4 5 6; do
            row+=$(awk -v m=$mode -v t=$tables -v c=$column '$1 == m && $2 == t { print $c }' "$scratch/rounds" | sort -n |
                awk '{ all[NR] = $1 } END { printf " %-20s", all[int((NR + 1) / 2)] " (" all[1] "-" all[NR] ")" }')
        done
        echo "$row"
    done
done
