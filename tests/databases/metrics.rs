//! The guard's metrics: a real Prometheus scrapes them beside a real `MariaDB`, a real browser
//! shows the page, and the shipped files for both are tested.
//!
//! Needs root and Debian's `prometheus`, `chromium`, `mariadb-server`, `sysbench` and `util-linux`,
//! each test what it names; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s.

use crate::support;
use crate::support::guard::{Guard, program};
use crate::support::logs::Logs;
use crate::support::prometheus::{HttpResponse, Prometheus, ask, free_port};
use crate::support::sysbench::{self, Load, LoadedServer as _};
use crate::support::{MIB, eventually, mariadb, resident_bytes};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../deploy")
        .join(name)
        .canonicalize()
        .expect("it is shipped")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test's own")
}

fn get(port: u16, path: &str) -> HttpResponse {
    ask(port, "GET", path, &[]).expect("the guard answers")
}

/// Starts a guard with metrics on a private port, and waits until it answers.
fn guard(arguments: &[&str]) -> (Guard, u16) {
    let port = free_port();
    let metrics = port.to_string();
    let mut all = vec!["--metrics", &metrics, "--tick", "200ms"];
    all.extend(arguments);
    let guard = Guard::spawn(&all);
    eventually("the guard's metrics are there", WAIT_TIMEOUT, || ask(port, "GET", "/healthz", &[]));
    (guard, port)
}

/// Runs a program with something on its standard input.
fn feed(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start a program");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("feed it");
    child.wait_with_output().expect("wait for it")
}

fn assert_fine(output: &Output) {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
}

/// Returns every metric's name in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices("pagekeeper_")
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| is_part(c) || c == ':' || c == '-'))
        .map(|(at, _)| text[at..].split(|c| !is_part(c)).next().expect("its name").to_owned())
        .collect()
}

fn sampled(exposition: &str) -> BTreeSet<String> {
    names(&exposition.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"))
}

/// Returns the sum of all series of released bytes.
fn released_in(exposition: &str) -> Option<f64> {
    let samples = exposition.lines().filter(|line| line.starts_with("pagekeeper_released_bytes_total"));
    samples.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn prometheus_agrees_with_fincore() {
    let programs = ["prometheus", "promtool", "fincore", "setpriv", "sysbench"];
    let programs: Vec<&str> = programs.into_iter().chain(mariadb::REQUIRED_PROGRAMS).collect();
    if !support::can_run("metrics in Prometheus", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = mariadb::Server::start(scratch.path(), mariadb::Options::primary().redo_buffered(true));
    sysbench::prepare(&server);
    let mut load = Load::start(&server);
    eventually("some binlogs are full", Duration::from_secs(600), || {
        load.check();
        (server.binlogs().len() > 3).then_some(())
    });
    drop(load);

    let (guard, port) = guard(&["--pid", &server.pid().to_string(), "--metrics-files", "3"]);
    let rules = deploy("prometheus-rules.yml");
    let prometheus = Prometheus::start(&scratch.path().join("prometheus"), port, &rules);
    guard.wait_for("tick", WAIT_TIMEOUT, |tick| tick["released_bytes"].as_u64() > Some(0));
    server.execute("FLUSH TABLES");

    // Residency, once nothing changes any more.
    let logs = |stem: &str| -> Vec<PathBuf> {
        let of_stem =
            |path: &PathBuf| path.file_name().is_some_and(|name| text(name.as_ref()).starts_with(stem));
        server.log_files().into_iter().filter(of_stem).collect()
    };
    let mut redo = logs("ib_logfile");
    redo.extend(logs("aria_log."));
    for (class, files) in [("binlog", logs("binlog.")), ("redo", redo)] {
        let reported = format!("pagekeeper_resident_bytes{{engine=\"mariadb\",class=\"{class}\"}}");
        let mut seen = Vec::new();
        eventually(&format!("Prometheus has fincore's figure of {class}"), WAIT_TIMEOUT, || {
            let (before, value, after) =
                (resident_bytes(&files), prometheus.value(&reported), resident_bytes(&files));
            seen.push((before, value));
            (before == after && value == Some(before as f64)).then_some(())
        });
        let size: u64 = files.iter().map(|path| path.metadata().expect("it is there").len()).sum();
        // After a scrape that took longer than a second there is no value until the next one.
        eventually(&format!("Prometheus has the size of {class}"), WAIT_TIMEOUT, || {
            (prometheus.value(&reported.replace("resident", "file_size")) == Some(size as f64)).then_some(())
        });
    }
    let up = eventually("a database is up", WAIT_TIMEOUT, || {
        prometheus.query("pagekeeper_database_up").first().map(|(labels, _)| labels.clone())
    });
    assert_eq!(up["directory"], text(&server.data()));
    eventually("the guard is up", WAIT_TIMEOUT, || {
        (prometheus.value("up{job=\"pagekeeper\"}") == Some(1.0)).then_some(())
    });
    eventually("three files are reported", WAIT_TIMEOUT, || {
        (prometheus.query("pagekeeper_top_file_resident_bytes").len() == 3).then_some(())
    });

    // The server has the file open for direct I/O; the test reads it through the page cache.
    let mixed = |count: f64| {
        eventually("the mixed file is reported", WAIT_TIMEOUT, || {
            (prometheus.value("pagekeeper_mixed_files") == Some(count)).then_some(())
        });
    };
    mixed(0.0);
    let buffered = std::fs::File::open(server.data().join("ibdata1")).expect("open its tablespace");
    mixed(1.0);
    drop(buffered);

    // The rules and the dashboard find all their metrics.
    eventually("the recording rule has a value", WAIT_TIMEOUT, || {
        prometheus.value("pagekeeper:log_resident_bytes:sum")
    });
    let exposition = get(port, "/metrics").body;
    let exported = sampled(&exposition);
    for file in ["prometheus-rules.yml", "grafana-dashboard.json"] {
        let used = names(&std::fs::read_to_string(deploy(file)).expect("it is shipped"));
        assert!(used.len() > 8, "{file}: {used:?}");
        let missing: Vec<_> = used.difference(&exported).collect();
        assert!(missing.is_empty(), "{file} uses {missing:?}, of which there is nothing in\n{exposition}");
    }
    assert_fine(&feed(Command::new("promtool").args(["check", "metrics"]), &exposition));
    assert!(exposition.contains("pagekeeper_trace_source{source=\"bpf\"} 1"), "{exposition}");

    // The released bytes in total. The server is stopped, so that nothing comes that could be
    // released after the scrape.
    server.freeze();
    let reported =
        eventually("all that is released is in Prometheus, and no more comes", WAIT_TIMEOUT, || {
            let seen = released_in(&get(port, "/metrics").body);
            guard.wait_for_ticks(3);
            let reported = prometheus.value("sum(pagekeeper_released_bytes_total)");
            reported.filter(|_| reported == seen && seen == released_in(&get(port, "/metrics").body))
        });
    let ended = guard.stop();
    server.thaw();
    assert_eq!(ended.summary()["released_total_bytes"].as_f64(), Some(reported));
}

#[test]
fn the_shipped_prometheus_files_are_valid() {
    if !support::can_start("the shipped rules", &["promtool"]) {
        return;
    }
    let promtool = |arguments: [&str; 2], file: &str| {
        let output = Command::new("promtool").args(arguments).arg(deploy(file)).output();
        assert_fine(&output.expect("run promtool"));
    };
    promtool(["check", "rules"], "prometheus-rules.yml");
    promtool(["test", "rules"], "prometheus-rules.test.yml");
}

#[test]
fn the_shipped_prometheus_files_distinguish_streams_from_other_logs() {
    let files = [
        ("prometheus-rules.yml", ["class=~\"redo|binlog|relay|wal\"", "class=\"messages\""]),
        ("grafana-dashboard.json", ["\"query\": \"redo|binlog|relay|wal\"", "class=\\\"messages\\\""]),
    ];
    for (file, parts) in files {
        let text = std::fs::read_to_string(deploy(file)).expect("it is shipped");
        for part in parts {
            assert!(text.contains(part), "{file} has no {part}");
        }
        assert_eq!(text.matches("redo|binlog").count(), 1, "{file} lists the classes of logs once");
    }
}

#[test]
fn each_alert_has_its_runbook_and_each_panel_its_description() {
    let read = |path: &str| std::fs::read_to_string(deploy(path)).expect("it is shipped");
    let rules = read("prometheus-rules.yml");
    let page = read("../docs/src/troubleshooting.md");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 20, "{alerts:?}");
    for alert in &alerts {
        let address = format!("/troubleshooting.md#{}\"", alert.to_lowercase());
        assert!(rules.contains(&address), "{alert} has no runbook");
        assert!(page.contains(&format!("\n### {alert}\n")), "the page does not explain {alert}");
    }
    assert_eq!(page.matches("\n### Pagekeeper").count(), alerts.len(), "the page has alerts that are gone");
    let dashboard: serde_json::Value = serde_json::from_str(&read("grafana-dashboard.json")).expect("JSON");
    for panel in dashboard["panels"].as_array().expect("panels") {
        let is_described = panel["description"].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_described || panel["type"] == "row", "{} has no description", panel["title"]);
    }
}

#[test]
fn the_pod_has_the_rights_of_the_service() {
    let read = |name: &str| std::fs::read_to_string(deploy(name)).expect("it is shipped");
    let rights = |text: &str| -> BTreeSet<String> {
        let line = text.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).expect("a line");
        line.split(' ').map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
    };
    let mut wanted = rights(&read("pagekeeper-guard.service"));
    wanted.extend(rights(&read("pagekeeper-guard.service.d/metrics.conf")));
    let pod = read("kubernetes-daemonset.yaml");
    let line = pod.lines().find_map(|line| line.trim().strip_prefix("add: [")).expect("a line");
    let given: BTreeSet<String> =
        line.trim_end_matches(']').split(", ").map(|name| name.trim_matches('"').to_owned()).collect();
    assert_eq!(given, wanted);
    serde_json::from_str::<serde_json::Value>(&read("grafana-dashboard.json")).expect("JSON");
}

/// Checks what can be seen without Helm. `make test-helm` renders the chart and compares whole
/// objects.
#[test]
fn the_chart_agrees_with_the_manifest() {
    let read = |name: &str| std::fs::read_to_string(deploy(name)).expect("it is shipped");
    let lines = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().map(|line| line.trim().trim_start_matches("- ").to_owned());
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    };
    let manifest = lines(&read("kubernetes-daemonset.yaml"));
    let chart = "helm/pagekeeper";
    let templates = ["namespace", "configmap", "daemonset"];
    let templates = templates.map(|name| read(&format!("{chart}/templates/{name}.yaml")));
    for template in &templates {
        // Conditional parts need not be in the manifest.
        let mut conditions = 0;
        for line in template.lines() {
            if line.contains("{{- with")
                || line.contains("{{- if") && !line.contains(".Values.namespace.create")
            {
                conditions += 1;
            } else if line.contains("{{- end") {
                conditions -= i32::from(conditions > 0);
            } else if conditions == 0 && !line.contains("{{") {
                let missing: Vec<String> = lines(line).difference(&manifest).cloned().collect();
                assert!(missing.is_empty(), "the manifest does not say: {missing:?}");
            }
        }
    }
    let values = read(&format!("{chart}/values.yaml"));
    for line in ["cpu: 10m", "memory: 32Mi", "memory: 256Mi", "operator: Exists"] {
        assert!(manifest.contains(line) && lines(&values).contains(line), "{line}");
    }
    let readme = read(&format!("{chart}/README.md"));
    let named = values.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    for (value, _) in named.filter_map(|line| line.split_once(':')) {
        let is_named = ["`", "."].iter().any(|end| readme.contains(&format!("`{value}{end}")));
        assert!(is_named, "the chart's README does not explain {value}");
    }
}

#[test]
fn the_server_answers_only_reads() {
    if !support::can_start("the guard's server", &["setpriv"]) {
        return;
    }
    let scratch = support::scratch();
    let logs = Logs::filled(scratch.path(), 2);
    let (guard, port) = guard(&["--dir", text(logs.directory()), "--profile", "generic"]);

    let plain = get(port, "/metrics");
    assert_eq!(
        (plain.status, plain.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    let wanted = [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")];
    let open = ask(port, "GET", "/metrics", &wanted).expect("it answers");
    assert_eq!(open.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.body.ends_with("# EOF\n") && !plain.body.contains("# EOF"));

    let head = ask(port, "HEAD", "/metrics", &[]).expect("it answers");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!((get(port, "/healthz").status, get(port, "/favicon.ico").status), (200, 404));
    for (method, path) in [("POST", "/metrics"), ("PUT", "/"), ("DELETE", "/data.json")] {
        let answer = ask(port, method, path, &[]).expect("it answers");
        assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"));
    }
    let long = "x".repeat(100_000);
    let refused = ask(port, "GET", "/", &[("X-Long", &long)]).expect("it answers");
    assert_eq!(refused.status, 431, "a head of 100 KB is too large");
    // A second name beside the first.
    let foreign = ask(port, "GET", "/data.json", &[("Host", "evil.example")]).map(|answer| answer.status);
    assert_eq!(foreign, Some(421));

    // A client that sends half of a request, and no more, keeps no other client waiting.
    let mut slow: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connect")).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").expect("say half of it");
    }
    assert_eq!(get(port, "/data.json").status, 200);
    guard.wait_for_ticks(2);
    assert!(guard.stop().status.success());
}

#[test]
fn an_unusable_address_is_reported_before_anything_begins() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("bind to a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let outcome = support::command::run(["guard", "--metrics", &port]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{outcome:#?}");
    let said = format!(
        "pagekeeper: metrics can't be served at 127.0.0.1:{port}: another program has this port; give --metrics \
         another one\n"
    );
    assert_eq!(outcome.stderr, said);
    let outcome = support::command::run(["guard", "--metrics", "192.0.2.1:9417"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("does not have that address"), "{outcome:#?}");
    for arguments in [
        &["--metrics", ":9417"][..],
        &["--metrics", "example.org:9417"],
        &["--metrics", "70000"],
        &["--metrics-files", "3"],
        &["--metrics", "9417", "--metrics-files", "1001"],
        &["--metrics", "9417", "--once"],
    ] {
        let outcome = support::command::run(["guard"].iter().chain(arguments));
        assert_eq!(outcome.code, 64, "{arguments:?}: {outcome:#?}");
    }
}

#[test]
fn missing_permissions_are_reported_once() {
    if !support::can_run("metrics without rights", &["setpriv"]) {
        return;
    }
    let scratch = support::scratch();
    let logs = Logs::filled(&scratch.path().join("logs"), 2);
    // A copy, since others may not be allowed where this program was built.
    let copy = scratch.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    let port = free_port();
    let guard = Guard::spawn_command(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL", "--"])
            .arg(&copy)
            .args(["guard", "--json", "--tick", "200ms", "--profile", "generic"])
            .args(["--dir", text(logs.directory()), "--metrics", &port.to_string()]),
    );
    let about_tracing = |event: &serde_json::Value| {
        event["gap"].as_str().is_some_and(|gap| gap.contains("tasks throttled for dirty pages"))
    };
    guard.wait_for("visibility_gap", WAIT_TIMEOUT, about_tracing);
    eventually("the source of traces is reported", WAIT_TIMEOUT, || {
        get(port, "/metrics").body.contains("pagekeeper_trace_source{source=\"counters\"} 1").then_some(())
    });
    let exposition = get(port, "/metrics").body;
    assert!(
        !exposition.contains("throttle_pauses") && !exposition.contains("reclaim_stalls"),
        "{exposition}"
    );
    assert!(exposition.contains("pagekeeper_unreadable_files"), "{exposition}");
    // Another sample, and nothing is said again.
    eventually("it samples again", WAIT_TIMEOUT, || {
        get(port, "/metrics").body.lines().any(|line| line == "pagekeeper_samples_total 2").then_some(())
    });
    guard.wait_for_ticks(2);
    let ended = guard.stop();
    let said: Vec<_> = ended.events.iter().filter(|event| event["event"] == "visibility_gap").collect();
    let once: BTreeSet<String> = said.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), once.len(), "{said:#?}");
    let needless = said.iter().any(|event| event.to_string().contains("debugfs"));
    assert!(!needless, "no metric is made of what debugfs shows: {said:#?}");
}

#[test]
fn the_page_draws_known_values() {
    if !support::can_run("the page in a browser", &["chromium", "setpriv"]) {
        return;
    }
    let scratch = support::scratch();
    let logs = Logs::filled(&scratch.path().join("logs"), 4);
    let (guard, port) = guard(&["--dir", text(logs.directory()), "--profile", "generic"]);
    let points = || {
        let data: serde_json::Value = serde_json::from_str(&get(port, "/data.json").body).expect("JSON");
        let points = data["points"].as_array().expect("points").clone();
        points.iter().filter(|point| point["resident"]["binlog"].is_u64()).count()
    };
    eventually("the history has two points with logs", WAIT_TIMEOUT, || (points() >= 2).then_some(()));
    let browse = |arguments: &[&str]| {
        // Waits for some 300 MiB of programs and libraries to be read from the disk.
        let output = Command::new("timeout")
            .args(["--kill-after=5", "600", "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--virtual-time-budget=4000"])
            .arg(format!("--user-data-dir={}", scratch.path().join("browser").display()))
            .args(arguments)
            .arg(format!("http://127.0.0.1:{port}/"))
            .output()
            .expect("run chromium");
        assert_fine(&output);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let dom = browse(&["--dump-dom"]);
    for chart in ["residency", "waits", "memory", "releases"] {
        let figure =
            dom.split(&format!("id=\"{chart}\"")).nth(1).and_then(|rest| rest.split("</figure>").next());
        let figure = figure.unwrap_or_else(|| panic!("no {chart} in {dom}"));
        let line = figure.split("class=\"series\" d=\"M").nth(1).and_then(|rest| rest.split('"').next());
        let drawn = line.map_or(0, |line| line.split('L').count());
        assert!(drawn >= 2, "{chart} has a line of {drawn} points: {figure}");
        assert!(figure.contains("At present: "), "it is said in words, too: {figure}");
    }
    assert!(dom.contains("generic") && dom.contains(text(logs.directory())), "{dom}");
    let gone = dom.split("id=\"gone\"").nth(1).and_then(|rest| rest.split('>').next());
    assert!(gone.is_some_and(|attributes| attributes.contains("hidden")), "{gone:?}");
    let released = 3 * MIB;
    assert!(dom.contains("3.00 MiB"), "{released} bytes were released: {dom}");

    let picture = scratch.path().join("page.png");
    browse(&["--window-size=390,1600", &format!("--screenshot={}", picture.display())]);
    let bytes = std::fs::read(&picture).expect("a picture");
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{} bytes", bytes.len());
    assert!(guard.stop().status.success());
}
