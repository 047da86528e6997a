//! The pod of `deploy/kubernetes-daemonset.yaml` as a container of podman: each field of its spec
//! becomes the option of podman that a kubelet would use.
//!
//! Invariant: an unknown field panics, so that none is added to the manifest without a mapping
//! here. Reads the manifest by Debian's `python3-yaml`.

use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that reads YAML.
pub(crate) const REQUIRED_PROGRAMS: [&str; 1] = ["/usr/bin/python3"];

/// A path of the node that a container sees, in the terms of a manifest.
pub(crate) struct HostPath {
    pub(crate) path: &'static str,
    pub(crate) mounted: &'static str,
    pub(crate) read_only: bool,
}

/// The mount that the chart adds with `cgroup.reclaim=true`
/// (`deploy/helm/pagekeeper/templates/daemonset.yaml`).
pub(crate) const RECLAIM: HostPath =
    HostPath { path: "/sys/fs/cgroup", mounted: "/host/sys/fs/cgroup", read_only: false };

/// The template of the `DaemonSet`, and its configuration.
pub(crate) struct Pod {
    spec: Map<String, Value>,
    container: Map<String, Value>,
    config: Map<String, Value>,
}

impl Pod {
    /// Returns the shipped manifest, with a guard that acts.
    pub(crate) fn of_the_manifest() -> Self {
        let manifest =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/kubernetes-daemonset.yaml");
        let script =
            "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)";
        let read = Command::new(REQUIRED_PROGRAMS[0])
            .args(["-c", script])
            .arg(manifest)
            .output()
            .expect("run python3");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        let objects: Vec<Value> = serde_json::from_slice(&read.stdout).expect("it wrote JSON");
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect("it is there");
        let mut spec = object(&of("DaemonSet")["spec"]["template"]["spec"]);
        let containers = list(&spec.remove("containers").expect("containers"));
        let [container] = &containers[..] else { panic!("one container: {containers:?}") };
        let mut pod = Self { spec, container: object(container), config: object(&of("ConfigMap")["data"]) };
        pod.end_the_dry_run();
        pod
    }

    /// Sets `dry_run = false`, as an operator does after the first reports.
    fn end_the_dry_run(&mut self) {
        let file = self.config.get_mut("guard.toml").expect("its configuration");
        let shipped = text(file);
        assert!(shipped.starts_with("dry_run = true\n"), "the first install changes nothing: {shipped}");
        *file = shipped.replacen("true", "false", 1).into();
    }

    /// Returns the image that it names.
    pub(crate) fn image(&self) -> &str {
        text(&self.container["image"])
    }

    /// Returns the program that it runs, as a path in that image.
    pub(crate) fn program(&self) -> PathBuf {
        let command = list(&self.container["command"]);
        assert_eq!(command.len(), 1, "{command:?}");
        PathBuf::from(text(&command[0]))
    }

    /// Returns the capabilities that it adds, as the kernel names them.
    pub(crate) fn capabilities(&self) -> Vec<String> {
        let added = &self.container["securityContext"]["capabilities"]["add"];
        list(added).iter().map(|name| format!("CAP_{}", text(name))).collect()
    }

    /// Returns its memory limit, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        bytes(text(&self.container["resources"]["limits"]["memory"]))
    }

    /// Returns the port and path of the kubelet's probe.
    pub(crate) fn probe(&self) -> (u64, String) {
        let (port, get) = (&self.container["ports"][0], &self.container["livenessProbe"]["httpGet"]);
        assert_eq!(port["name"], get["port"], "the probe's port is that of the metrics");
        (port["containerPort"].as_u64().expect("a number"), text(&get["path"]).to_owned())
    }

    /// Adds lines to its configuration.
    pub(crate) fn configure(&mut self, more: &str) {
        let file = self.config.get_mut("guard.toml").expect("its configuration");
        *file = format!("{}\n{more}", text(file)).into();
    }

    /// Returns the arguments of `podman run`, up to those of the program; files of its
    /// configuration are made in `scratch`.
    pub(crate) fn arguments(&self, scratch: &Path, more: &[HostPath]) -> Vec<String> {
        let mut arguments = vec!["run".to_owned(), "--rm".to_owned()];
        let mut add = |argument: String| arguments.push(argument);
        for (name, value) in &self.spec {
            match (name.as_str(), value) {
                ("hostPID", Value::Bool(true)) => add("--pid=host".to_owned()),
                ("terminationGracePeriodSeconds", seconds) => add(format!("--stop-timeout={seconds}")),
                // Ignored fields: mounts (see below), tokens, scheduling.
                ("volumes" | "tolerations", _) | ("automountServiceAccountToken", Value::Bool(false)) => {}
                _ => panic!("what does {name}: {value} do?"),
            }
        }
        for (name, value) in &self.container {
            match name.as_str() {
                "securityContext" => add_permission_options(&object(value), &mut add),
                "resources" => {
                    let limits = object(&value["limits"]);
                    assert!(limits.keys().all(|name| name == "memory"), "{limits:?}");
                    add(format!("--memory={}", self.memory()));
                }
                "volumeMounts" => {
                    for mount in list(value) {
                        add(self.volume(&object(&mount), scratch));
                    }
                }
                // The ports are in the container's network: a pod has an address of its own.
                "ports" => add("--network=none".to_owned()),
                "command" => add(format!("--entrypoint={value}")),
                "name" | "image" | "args" | "startupProbe" | "livenessProbe" | "readinessProbe" => {}
                _ => panic!("what does {name}: {value} do?"),
            }
        }
        for host in more {
            add(volume(host.path, host.mounted, host.read_only));
        }
        add(self.image().to_owned());
        for argument in list(&self.container["args"]) {
            add(text(&argument).to_owned());
        }
        arguments
    }

    fn volume(&self, mount: &Map<String, Value>, scratch: &Path) -> String {
        assert!(
            mount.keys().all(|key| ["name", "mountPath", "readOnly"].contains(&key.as_str())),
            "{mount:?}"
        );
        let volumes = list(&self.spec["volumes"]);
        let named = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("a volume");
        let source = if let Some(path) = named.get("hostPath") {
            text(&path["path"]).to_owned()
        } else {
            assert!(named.get("configMap").is_some(), "{named}");
            let directory = scratch.join(text(&mount["name"]));
            std::fs::create_dir_all(&directory).expect("make a directory");
            for (file, content) in &self.config {
                std::fs::write(directory.join(file), text(content)).expect("write a configuration");
            }
            directory.to_str().expect("it is UTF-8").to_owned()
        };
        let read_only = mount.get("readOnly").and_then(Value::as_bool).unwrap_or(false);
        volume(&source, text(&mount["mountPath"]), read_only)
    }
}

/// Adds podman's options for the permissions of a security context.
fn add_permission_options(context: &Map<String, Value>, mut add: impl FnMut(String)) {
    for (name, value) in context {
        match (name.as_str(), value) {
            ("runAsUser", user) => add(format!("--user={user}")),
            ("privileged", Value::Bool(false)) => {}
            ("allowPrivilegeEscalation", Value::Bool(false)) => {
                add("--security-opt=no-new-privileges".to_owned());
            }
            ("readOnlyRootFilesystem", Value::Bool(true)) => {
                // Podman's default adds tmpfs directories that a pod does not have.
                add("--read-only".to_owned());
                add("--read-only-tmpfs=false".to_owned());
            }
            ("capabilities", value) => {
                for dropped in list(&value["drop"]) {
                    add(format!("--cap-drop={}", text(&dropped)));
                }
                for added in list(&value["add"]) {
                    add(format!("--cap-add={}", text(&added)));
                }
            }
            ("appArmorProfile" | "seccompProfile", value) => {
                assert_eq!(value["type"], "Unconfined");
                let name = name.trim_end_matches("Profile").to_lowercase();
                add(format!("--security-opt={name}=unconfined"));
            }
            ("seLinuxOptions", value) => add(format!("--security-opt=label=type:{}", text(&value["type"]))),
            _ => panic!("what does {name}: {value} do?"),
        }
    }
}

fn volume(path: &str, mounted: &str, read_only: bool) -> String {
    format!("--volume={path}:{mounted}{}", if read_only { ":ro" } else { "" })
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).clone()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Returns the bytes of a Kubernetes quantity in MiB.
fn bytes(quantity: &str) -> u64 {
    let mebibytes = quantity.strip_suffix("Mi").and_then(|figure| figure.parse::<u64>().ok());
    mebibytes.unwrap_or_else(|| panic!("{quantity}: another unit than Mi")) * super::MIB
}
