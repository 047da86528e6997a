_pagekeeper_pids() {
    local process
    for process in /proc/[0-9]*; do
        { read -r -n 1 _ <"$process/cmdline"; } 2>/dev/null && echo "${process#/proc/}"
    done
}
