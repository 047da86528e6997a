#!/usr/bin/env bash
# Tests the Helm chart as packed for users: lints it, compares its rendered objects with the manifest, and validates
# each of its options against the schemas of several versions of Kubernetes. Helm comes from the Go module proxy, the
# schemas from PyPI (kubernetes-validate); both go into the target directory.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/tools/kubernetes
go=$(command -v go || echo /usr/local/go/bin/go)
helm=$(command -v helm || echo "$tools/helm")
if [ ! -x "$helm" ]; then
    [ -x "$go" ] || { echo "make test-helm builds Helm, for which Go is missing." >&2; exit 1; }
    mkdir -p "$tools"
    GOBIN=$tools "$go" install helm.sh/helm/v3/cmd/helm@v3.19.5
fi
if [ ! -x "$tools/python/bin/kubernetes-validate" ]; then
    scripts/packages.sh "validating manifests: python3-venv"
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet kubernetes-validate==1.37.0
fi

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
chart=$work/pagekeeper.tgz
SOURCE_DATE_EPOCH=0 scripts/packaging/packed.sh deploy/helm pagekeeper >"$chart"
passed=0 failed=0
check() {
    local name=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
        echo "test helm::$name ... ok"
    else
        failed=$((failed + 1))
        echo "test helm::$name ... FAILED"
        cat "$work/output"
    fi
}
render() {
    local to=$1
    shift
    "$helm" template pagekeeper "$chart" --namespace pagekeeper --kube-version 1.37 "$@" >"$work/$to.yaml"
}
# Compares two files of objects, without the annotation that restarts pods, and the labels that name Helm.
same() {
    "$tools/python/bin/python" - "$@" <<'END'
import sys, yaml
def objects(path):
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(open(path)) if one}
    for one in found.values():
        described = [one["metadata"]]
        if one["kind"] == "DaemonSet":
            described.append(one["spec"]["template"]["metadata"])
            described[1]["annotations"].pop("pagekeeper/config", None)
        for each in described:
            for label in "helm.sh/chart", "app.kubernetes.io/managed-by":
                each["labels"].pop(label, None)
    return found
manifest, rendered = map(objects, sys.argv[1:])
for key in sorted(set(manifest) | set(rendered)):
    if manifest.get(key) != rendered.get(key):
        sys.exit(f"{key} differs:\n{manifest.get(key)}\n{rendered.get(key)}")
END
}
refused() {
    ! "$helm" template pagekeeper "$chart" --kube-version 1.37 "$@"
}

check lint "$helm" lint --strict "$chart"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
shows() {
    [ "$("$helm" show chart "$chart" | sed -n "s/^$1: \"*\([0-9.]*\)\"*$/\1/p")" = "$version" ]
}
check its_version_is_the_projects shows version
check its_image_is_of_that_version shows appVersion
render same --set namespace.create=true
render plain
render cgroup --set cgroup.mount=true --set-string config='[cgroup]
groups = ["/kubepods.slice/**"]
'
render all --set cgroup.reclaim=true --set-string image.tag=1 --set image.pullPolicy=Always --set priorityClassName=system-node-critical \
    --set nodeSelector.disk=ssd --set 'imagePullSecrets[0].name=key' --set metrics.port=9500
render without_events --set metrics.events=false
digest=sha256:$(printf '%064d' 7)
render more --set dryRun=false --set image.digest="$digest" --set-string 'extraArgs={--metrics-files,3}' --set metrics.port=9500 \
    --set networkPolicy.enabled=true --set 'networkPolicy.from[0].namespaceSelector.matchLabels.name=monitoring'
render monitor --set podMonitor.enabled=true --set podMonitor.labels.release=prometheus --set podMonitor.interval=15s
# The case of an upgrade with --reuse-values from a release without this value.
render unset_events --set metrics.events=null
check where_events_are_not_set_they_are_counted same "$work/plain.yaml" "$work/unset_events.yaml"
check renders_to_the_manifest same deploy/kubernetes-daemonset.yaml "$work/same.yaml"
check control_groups_are_read_only_by_default grep -q "readOnly: true" <(grep -A1 "mountPath: /host/sys/fs/cgroup" "$work/cgroup.yaml")
check control_groups_are_written_only_for_reclaim grep -q "readOnly: false" <(grep -A1 "mountPath: /host/sys/fs/cgroup" "$work/all.yaml")
# Only the unit's capabilities, and no access to the node; other lines are the same.
without_events() {
    diff "$work/plain.yaml" "$work/without_events.yaml" >"$work/difference" && return 1
    grep -q '^> *add: \["SYS_PTRACE", "DAC_READ_SEARCH", "FOWNER"\]$' "$work/difference" && [ "$(grep -c '^>' "$work/difference")" = 1 ] &&
        ! grep -E 'BPF|PERFMON|hostPath|tracefs' "$work/without_events.yaml"
}
check without_events_two_capabilities_and_a_mount_are_left_out without_events
has() { # has FILE LINE...: lines without their indentation
    local file=$1
    shift
    for line in "$@"; do
        grep --quiet --line-regexp --fixed-strings -- "$line" <(sed 's/^ *//' "$work/$file.yaml") || { echo "$file has no line $line" && return 1; }
    done
}
check the_first_install_is_a_dry_run has plain 'dry_run = true'
check a_dry_run_is_ended_by_a_value has more 'dry_run = false'
check an_image_is_named_by_its_digest has more "image: \"registry.example/pagekeeper@$digest\""
check arguments_and_port_are_passed_on has more '- --metrics-files' '- "3"' '- "0.0.0.0:9500"' 'prometheus.io/port: "9500"'
check a_network_policy_names_its_peers has more 'kind: NetworkPolicy' 'name: monitoring'
# Without its own object, which schemas of Kubernetes do not have; its selector finds the pods.
monitored() {
    "$tools/python/bin/python" - "$work/plain.yaml" "$work/monitor.yaml" <<'END'
import sys, yaml
plain, monitored = ({one["kind"]: one for one in yaml.safe_load_all(open(path)) if one} for path in sys.argv[1:])
monitor = monitored.pop("PodMonitor")
pod = monitored["DaemonSet"]["spec"]["template"]
assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), monitor
(endpoint,) = monitor["spec"]["podMetricsEndpoints"]
assert endpoint == {"port": pod["spec"]["containers"][0]["ports"][0]["name"], "interval": "15s"}, endpoint
assert monitor["metadata"]["labels"]["release"] == "prometheus"
assert not any("prometheus.io" in name for name in pod["metadata"]["annotations"]), "scraped twice"
assert set(monitored) == set(plain), "only the monitor is added"
END
}
check a_pod_monitor_finds_the_pods monitored
check dry_run_in_the_configuration_is_refused refused --set-string 'config=dry_run = false'
check a_digest_that_is_none_is_refused refused --set image.digest=latest
check an_unknown_value_is_refused refused --set cgroups.mount=true
check a_port_below_1024_is_refused refused --set metrics.port=80
misspelt() {
    sed 's/hostPID/hostPid/' "$work/plain.yaml" >"$work/misspelt.yaml"
    ! "$tools/python/bin/kubernetes-validate" --strict --kubernetes-version 1.37 "$work/misspelt.yaml"
}
check a_misspelt_field_is_seen misspelt
for version in 1.30 1.34 1.37; do
    for file in deploy/kubernetes-daemonset.yaml "$work"/{same,plain,cgroup,all,without_events,more}.yaml; do
        check "kubernetes_${version}_takes_$(basename "$file" .yaml)" \
            "$tools/python/bin/kubernetes-validate" --strict --kubernetes-version "$version" "$file"
    done
done

verdict=ok
[ "$failed" -eq 0 ] || verdict=FAILED
echo "test result: $verdict. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
[ "$failed" -eq 0 ]
