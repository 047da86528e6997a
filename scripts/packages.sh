#!/usr/bin/env bash
# packages.sh "PURPOSE: PACKAGE..."... — installs missing Debian packages if this is root; otherwise prints, for each
# purpose, the missing packages and the command that installs them. Exits 0 unless an installation fails. Services that
# come with packages (mariadb-server, postgresql, prometheus, etcd-server, nats-server, rabbitmq-server with Erlang's
# epmd, clickhouse-server, victoria-metrics, podman's) are neither started nor left enabled.
set -euo pipefail

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is not Debian. Install the packages that correspond to these, where missing:" >&2
    printf '  %s\n' "$@" >&2
    exit 0
fi

read -ra wanted <<<"${*#*: }"
installed=$(dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
all_missing=()
for group in "$@"; do
    read -ra packages <<<"${group#*: }"
    missing=()
    for package in "${packages[@]}"; do
        grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" -ne 0 ]; then
        echo "Missing: ${missing[*]}, for ${group%%: *}. The fix, as root:" >&2
        echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    fi
    all_missing+=("${missing[@]}")
done
if [ ${#all_missing[@]} -eq 0 ] || [ "$(id -u)" -ne 0 ]; then
    exit 0
fi

echo "Installing ${all_missing[*]}"
# invoke-rc.d and deb-systemd-invoke ask this file whether they may start a service; 101 means no.
gate=/usr/sbin/policy-rc.d
if [ ! -e "$gate" ]; then
    trap 'rm -f "$gate"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$gate"
    chmod 755 "$gate"
fi
had_erlang=$(dpkg-query --show --showformat '${db:Status-Status}' erlang-base 2>/dev/null || true)
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --yes --quiet=2 --no-install-recommends -o Dpkg::Use-Pty=0 "${all_missing[@]}" </dev/null
for service in mariadb-server:mariadb postgresql:postgresql prometheus:prometheus etcd-server:etcd nats-server:nats-server rabbitmq-server:rabbitmq-server clickhouse-server:clickhouse-server victoria-metrics:victoria-metrics; do
    if [[ " ${all_missing[*]} " == *" ${service%:*} "* ]] && command -v systemctl >/dev/null; then
        systemctl --quiet disable "${service#*:}.service" || true
    fi
done
if [ "$had_erlang" != installed ] && command -v systemctl >/dev/null && [ -e /lib/systemd/system/epmd.socket ]; then
    systemctl --quiet disable epmd.socket epmd.service || true
fi
if [[ " ${all_missing[*]} " == *" podman "* ]] && command -v systemctl >/dev/null; then
    systemctl --quiet disable podman.socket podman.service podman-auto-update.timer podman-auto-update.service podman-restart.service || true
fi
