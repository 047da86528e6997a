_pagekeeper_pids() {
    local process
    local -a pids
    for process in /proc/<->(N); do
        [[ -n "$(<$process/cmdline)" ]] 2>/dev/null && pids+=(${process:t})
    done
    compadd -- $pids
}
