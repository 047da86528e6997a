//! Tests of very many directories, names and descriptors of hostile processes beside a server's.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::testing::{HoldingProcess, disk_dir, skip};
use crate::tests::{file, write};
use crate::{Observer, ObserverOptions, ObserverScope};

/// Returns a process that bash starts, once it has its name.
fn started(mut command: std::process::Command, name: &str) -> HoldingProcess {
    let holder = HoldingProcess::of(command.spawn().unwrap());
    let proc = pagekeeper_kernel::process::ProcRoot::default();
    let began = std::time::Instant::now();
    while proc.name(holder.pid()).unwrap() != name {
        assert!(began.elapsed().as_secs() < 60, "bash and setpriv are there, and it starts");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    holder
}

#[test]
fn very_many_directories_of_one_user_displace_no_files_of_another() {
    if !rustix::process::geteuid().is_root() {
        skip("very_many_directories_of_one_user_displace_no_files_of_another: needs root to become another");
        return;
    }
    let (dir, programs) = (disk_dir(), tempfile::tempdir().unwrap());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(programs.path(), open).unwrap();
    let (data, fakes) = (dir.path().join("data"), dir.path().join("fakes"));
    let shop = data.join("shop");
    std::fs::create_dir_all(&shop).unwrap();
    for number in 0..400 {
        std::fs::write(shop.join(format!("{number}.ibd")), b"1").unwrap();
    }
    for number in 0..1100 {
        let directory = fakes.join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        for file in ["ibdata1", "one", "two"] {
            std::fs::write(directory.join(file), b"1").unwrap();
        }
    }
    let open = || File::options().read(true).write(true).open(shop.join("7.ibd")).unwrap();
    let server = HoldingProcess::start(&programs.path().join("mariadbd"), open(), open());
    // Another user's process has a file open in each of its directories, and has more of them than
    // are observed.
    let script = "ulimit -n 8192 && for file in \"$0\"/*/ibdata1; do exec {fd}>>\"$file\" || exit 1; done; \
                  exec setpriv --reuid=12345 --clear-groups \"$1\" 1000";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script]).arg(&fakes).arg(programs.path().join("mariadbd"));
    let fake = started(command, "mariadbd");
    let scope = ObserverScope::Pids(vec![server.pid(), fake.pid()]);
    let options = ObserverOptions { scope, max_files: 1000, ..ObserverOptions::default() };
    let mut observer = Observer::start(options).unwrap();
    for snapshot in 1..=3 {
        let seen = observer.snapshot().unwrap();
        let of = |path: &Path| seen.files.iter().filter(|file| file.path.starts_with(path)).count();
        assert_eq!(of(&data), 400, "in snapshot {snapshot}");
        assert!((500..=600).contains(&of(&fakes)), "{} in snapshot {snapshot}", of(&fakes));
        let of_fake = seen.databases.iter().find(|database| database.pid == Some(fake.pid())).unwrap();
        assert!(of_fake.directories.len() <= 1024, "{}", of_fake.directories.len());
        assert!(seen.visibility_gaps.len() < 60, "{:#?}", seen.visibility_gaps);
        let said = format!("all directories of process {}", fake.pid());
        assert!(seen.visibility_gaps.iter().any(|gap| gap.what == said), "{:#?}", seen.visibility_gaps);
    }
}

#[test]
fn descriptors_are_kept_up_to_a_limit_and_counted_beyond() {
    let dir = disk_dir();
    let path = |name: &str| dir.path().join(name);
    for name in ["one", "two"] {
        write(&path(name), 4096);
    }
    // No two in a row are alike.
    let script = "ulimit -n 8192 && for ((n = 0; n < 1500; n++)); do exec {a}<>\"$0/one\" {b}<>\"$0/two\" || exit 1; done; \
                  exec -a holds sleep 1000";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script]).arg(dir.path());
    let holder = started(command, "sleep");
    let scope = ObserverScope::Pids(vec![holder.pid()]);
    let options = ObserverOptions { scope, max_files: 1000, ..ObserverOptions::default() };
    let seen = Observer::start(options).unwrap().snapshot().unwrap();
    // The scan for openers of the files sees all of them.
    for name in ["one", "two"] {
        let openers = &file(&seen, &path(name)).openers;
        assert_eq!(
            openers.iter().map(|opener| (opener.pid, opener.count)).collect::<Vec<_>>(),
            [(holder.pid(), 1500)]
        );
    }
    let what = format!("all files that process {} has open", holder.pid());
    let gap = seen.visibility_gaps.iter().find(|gap| gap.what == what).unwrap();
    let left_out: usize = gap.why.split(' ').next().unwrap().parse().unwrap();
    assert!((1000..1200).contains(&left_out), "{gap:?}");
}

#[test]
fn very_many_renames_of_one_user_hide_no_new_file_of_another() {
    if !rustix::process::geteuid().is_root() {
        skip("very_many_renames_of_one_user_hide_no_new_file_of_another: needs root");
        return;
    }
    let (dir, programs) = (disk_dir(), tempfile::tempdir().unwrap());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(programs.path(), open).unwrap();
    let holder = |name: &str, user: u32| {
        let data = dir.path().join(name);
        write(&data.join("ibdata1"), 8192);
        for path in [data.clone(), data.join("ibdata1")] {
            std::os::unix::fs::chown(path, Some(user), None).unwrap();
        }
        let mut command = std::process::Command::new("bash");
        let script = "exec 9<>\"$0/ibdata1\" && exec setpriv --reuid=\"$2\" --clear-groups \"$1\" 1000";
        let program = programs.path().join("mariadbd");
        if !program.exists() {
            assert!(
                std::process::Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success()
            );
        }
        command.args(["-c", script]).arg(&data).arg(&program).arg(user.to_string());
        (data, started(command, "mariadbd"))
    };
    let (server, fake) = (holder("server", 12346), holder("fake", 12345));
    let scope = ObserverScope::Pids(vec![server.1.pid(), fake.1.pid()]);
    let options = ObserverOptions { scope, max_files: 1000, ..ObserverOptions::default() };
    let mut observer = Observer::start(options).unwrap();
    for round in 0..3 {
        for number in 0..1000 {
            symlink("/", fake.0.join(format!("{round}-{number}"))).unwrap();
        }
        let table = server.0.join(format!("{round}.ibd"));
        write(&table, 4096);
        let seen = observer.snapshot().unwrap();
        let said: Vec<_> =
            seen.visibility_gaps.iter().filter(|gap| gap.what.starts_with("all names in ")).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(said[0].what, format!("all names in {}", fake.0.display()));
        file(&seen, &table);
    }
}
