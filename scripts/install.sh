#!/usr/bin/env bash
# Installs under $DESTDIR$PREFIX. Builds first if cargo is available; otherwise installs the result of `make build`, so
# that `make build && sudo make install` works where root has no Rust. PROGRAM names a program that was built elsewhere,
# perhaps for another processor; RUNS_HERE then names one of the same source that runs on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
program=${PROGRAM:-${CARGO_TARGET_DIR:-target}/release/pagekeeper}

if [ -n "${PROGRAM:-}" ]; then
    :
elif command -v "$cargo" >/dev/null || [ ! -x "$program" ]; then
    scripts/require-rust.sh
    "$cargo" build --release --package pagekeeper
fi

install -D --mode 755 "$program" "$root/bin/pagekeeper"
program=${RUNS_HERE:-$program}

generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
"$program" man --dir "$generated"
install -d "$root/share/man/man1"
install --mode 644 "$generated"/*.1 "$root/share/man/man1/"
install -D --mode 644 deploy/pagekeeper-guard.toml.5 "$root/share/man/man5/pagekeeper-guard.toml.5"

completion() {
    "$program" completions "$1" >"$generated/completion"
    install -D --mode 644 "$generated/completion" "$root/share/$2"
}
completion bash bash-completion/completions/pagekeeper
completion zsh zsh/site-functions/_pagekeeper
completion fish fish/vendor_completions.d/pagekeeper.fish

install -D --mode 644 deploy/guard.toml "$root/share/doc/pagekeeper/guard.toml"
install -d "$root/share/doc/pagekeeper/schemas"
install --mode 644 docs/schemas/*.json "$root/share/doc/pagekeeper/schemas/"
# Templates for users' own profiles: the program has them built in and does not read these files.
install -d "$root/share/doc/pagekeeper/profiles"
install --mode 644 crates/operate/catalog/profiles/*.toml "$root/share/doc/pagekeeper/profiles/"

# systemd reads units of local software from /etc and /usr/local/lib, units of packages from /usr/lib.
for unit in deploy/pagekeeper-*.service deploy/pagekeeper-*.timer; do
    sed "s|^\(ExecStart[a-zA-Z]*\)=/usr/local/bin/|\1=$prefix/bin/|" "$unit" >"$generated/unit"
    install -D --mode 644 "$generated/unit" "$root/lib/systemd/system/${unit##*/}"
done

# Examples to copy: the unit by itself gives the guard no network.
sed "s|^\(ExecStart[a-zA-Z]*\)=/usr/local/bin/|\1=$prefix/bin/|" deploy/pagekeeper-guard.service.d/metrics.conf >"$generated/metrics"
install --mode 644 "$generated/metrics" "$root/share/doc/pagekeeper/metrics.conf"
install --mode 644 deploy/pagekeeper-guard.service.d/cgroup.conf deploy/pagekeeper-guard.service.d/streams.conf "$root/share/doc/pagekeeper/"
# The alerts name sections of the page on troubleshooting, which is beside them.
sed "s|file:///usr/share/|file://$prefix/share/|" deploy/prometheus-rules.yml >"$generated/rules"
install --mode 644 "$generated/rules" "$root/share/doc/pagekeeper/prometheus-rules.yml"
install --mode 644 deploy/grafana-dashboard.json deploy/kubernetes-daemonset.yaml docs/src/troubleshooting.md "$root/share/doc/pagekeeper/"

find deploy/helm -type f | while read -r file; do
    install -D --mode 644 "$file" "$root/share/doc/pagekeeper/${file#deploy/}"
done

# Servers and backups under `pagekeeper run`: each file names its destination.
install -d "$root/share/doc/pagekeeper/run"
for example in deploy/pagekeeper-run/*; do
    sed "s|/usr/local/bin/|$prefix/bin/|g" "$example" >"$generated/example"
    install --mode 644 "$generated/example" "$root/share/doc/pagekeeper/run/${example##*/}"
done
echo "Installed under $root. To start the guard: systemctl daemon-reload && systemctl enable --now pagekeeper-guard"
