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
# Compares two files of objects, without the annotation that restarts pods.
same() {
    "$tools/python/bin/python" - "$@" <<'END'
import sys, yaml
def objects(path):
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(open(path)) if one}
    for one in found.values():
        if one["kind"] == "DaemonSet":
            one["spec"]["template"]["metadata"]["annotations"].pop("pagekeeper/config", None)
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
check an_unknown_value_is_refused refused --set cgroups.mount=true
check a_port_below_1024_is_refused refused --set metrics.port=80
misspelt() {
    sed 's/hostPID/hostPid/' "$work/plain.yaml" >"$work/misspelt.yaml"
    ! "$tools/python/bin/kubernetes-validate" --strict --kubernetes-version 1.37 "$work/misspelt.yaml"
}
check a_misspelt_field_is_seen misspelt
for version in 1.30 1.34 1.37; do
    for file in deploy/kubernetes-daemonset.yaml "$work"/{same,plain,cgroup,all,without_events}.yaml; do
        check "kubernetes_${version}_takes_$(basename "$file" .yaml)" \
            "$tools/python/bin/kubernetes-validate" --strict --kubernetes-version "$version" "$file"
    done
done

verdict=ok
[ "$failed" -eq 0 ] || verdict=FAILED
echo "test result: $verdict. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
[ "$failed" -eq 0 ]
