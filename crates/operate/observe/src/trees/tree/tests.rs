//! Tests of scans of real directories that change in between.

use super::*;
use crate::testing::disk_dir;
use pagekeeper_catalog::find_profile;

struct Scans {
    tree: DirectoryTree,
    profile: Profile,
    number: u64,
    pin: Option<Inode>,
    most: usize,
    most_names: usize,
    names: usize,
    gaps: Vec<String>,
}

impl Scans {
    fn at(path: &Path) -> Self {
        let profile = find_profile(&Profile::built_in(), "mariadb").unwrap().clone();
        Self {
            tree: DirectoryTree::new((None, path.to_path_buf())),
            profile,
            number: 0,
            pin: None,
            most: 1000,
            most_names: usize::MAX,
            names: 0,
            gaps: Vec::new(),
        }
    }

    fn scan(&mut self, time: Duration, busy: &[Inode]) -> Vec<String> {
        self.number += 1;
        let busy = busy.iter().copied().collect();
        let context = ScanContext {
            proc: &ProcRoot::default(),
            profile: &self.profile,
            party: Party::Operator,
            is_anothers: &|_| false,
            selects: &|_| true,
            busy: &busy,
            number: self.number,
            time,
            max_files: self.most,
            max_names: self.most_names,
            pin: self.pin,
        };
        let mut gaps = VisibilityGaps::default();
        let spent = self.tree.scan(&context, &mut gaps);
        assert!(spent.names <= self.most_names, "{spent:?}");
        self.names = spent.names;
        self.gaps = gaps.into_gaps().into_iter().map(|gap| gap.what).collect();
        let mut names: Vec<_> = self.tree.files.keys().map(|name| name.display().to_string()).collect();
        names.sort();
        names
    }

    fn size(&self, name: &str) -> u64 {
        self.tree.files[Path::new(name)].sample.size
    }
}

/// Lets directories settle, as if the last change had been long ago.
fn settle(path: &Path) {
    let ago = SystemTime::now() - Duration::from_secs(100);
    std::fs::File::open(path).unwrap().set_modified(ago).unwrap();
}

#[test]
fn a_directory_that_took_the_place_of_the_one_that_was_judged_is_not_listed() {
    let dir = disk_dir();
    let (data, other) = (dir.path().join("data"), dir.path().join("other"));
    for path in [&data, &other] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("ibdata1"), b"x").unwrap();
    }
    let mut scans = Scans::at(&data);
    scans.pin = Some(Inode::of(&stat_of_name(&data).unwrap()));
    assert_eq!(scans.scan(Duration::MAX, &[]), ["ibdata1"]);
    std::fs::rename(&data, dir.path().join("was")).unwrap();
    std::os::unix::fs::symlink(&other, &data).unwrap();
    assert_eq!(scans.scan(Duration::MAX, &[]), [""; 0]);
}

#[test]
fn later_scans_follow_new_removed_and_renamed_files() {
    let dir = disk_dir();
    let path = dir.path();
    let write = |name: &str, len: usize| std::fs::write(path.join(name), vec![1; len]).unwrap();
    std::fs::create_dir_all(path.join("a/b")).unwrap();
    write("a/b/1.ibd", 10);
    write("a/2.ibd", 20);
    write("bin.000001", 30);
    let mut scans = Scans::at(path);
    let ample = Duration::from_secs(100);
    assert_eq!(scans.scan(ample, &[]), ["a/2.ibd", "a/b/1.ibd", "bin.000001"]);
    assert_eq!(scans.tree.files[Path::new("bin.000001")].class, None);
    for below in ["a/b", "a", ""] {
        settle(&path.join(below));
    }
    assert_eq!(scans.scan(ample, &[]).len(), 3);
    assert!(scans.tree.directories.values().all(Option::is_some), "{:?}", scans.tree.directories);
    write("bin.index", 1);
    std::fs::create_dir(path.join("c")).unwrap();
    write("c/3.ibd", 40);
    std::fs::remove_file(path.join("a/2.ibd")).unwrap();
    write("new", 50);
    std::fs::rename(path.join("new"), path.join("a/b/1.ibd")).unwrap();
    assert_eq!(scans.scan(ample, &[]), ["a/b/1.ibd", "bin.000001", "bin.index", "c/3.ibd"]);
    assert_eq!(scans.tree.files[Path::new("bin.000001")].class, Some(FileClass::Binlog));
    assert_eq!(scans.size("a/b/1.ibd"), 50);
    std::fs::remove_dir_all(path.join("a")).unwrap();
    assert_eq!(scans.scan(ample, &[]), ["bin.000001", "bin.index", "c/3.ibd"]);
    std::fs::remove_dir_all(path).unwrap();
    assert!(scans.scan(ample, &[]).is_empty());
}

#[test]
fn open_and_dirty_files_come_first_then_the_longest_unsampled() {
    let dir = disk_dir();
    for name in ["1", "2", "3", "4"] {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(1).unwrap();
        file.sync_all().unwrap();
    }
    std::fs::write(dir.path().join("4"), b"dirty").unwrap();
    let mut scans = Scans::at(dir.path());
    scans.scan(Duration::ZERO, &[]);
    scans.tree.files.get_mut(Path::new("3")).unwrap().sampled_in = 0;
    let busy = HashSet::from([scans.tree.files[Path::new("2")].sample.inode]);
    let context = ScanContext {
        proc: &ProcRoot::default(),
        profile: &scans.profile,
        party: Party::Operator,
        is_anothers: &|_| false,
        selects: &|_| true,
        busy: &busy,
        number: 2,
        time: Duration::from_secs(1),
        max_files: 1000,
        max_names: usize::MAX,
        pin: None,
    };
    let due: Vec<_> = scans.tree.due(&context);
    let mut due: Vec<_> = due.iter().map(|below| below.to_str().unwrap()).collect();
    let first =
        if scans.tree.files[Path::new("4")].sample.is_unwritten() { vec!["2", "4"] } else { vec!["2"] };
    // The order of two equally urgent ones is open.
    due[..first.len()].sort_unstable();
    assert_eq!(due[..first.len()], first);
    assert_eq!(due[first.len()], "3");
    assert_eq!(due.len(), 4);
}

#[test]
fn files_are_kept_up_to_a_limit_and_counted_beyond() {
    let dir = disk_dir();
    for name in 0..1500 {
        std::fs::write(dir.path().join(name.to_string()), b"").unwrap();
    }
    let mut scans = Scans::at(dir.path());
    for _ in 0..3 {
        scans.scan(Duration::from_secs(100), &[]);
        assert_eq!((scans.tree.files.len(), scans.tree.left_out.values().sum()), (1000, 500));
    }
    for name in 0..800 {
        std::fs::remove_file(dir.path().join(name.to_string())).unwrap();
    }
    // There is room once it is known which files are gone.
    scans.scan(Duration::from_secs(100), &[]);
    scans.scan(Duration::from_secs(100), &[]);
    assert_eq!((scans.tree.files.len(), scans.tree.left_out.values().sum()), (700, 0));
}

#[test]
fn without_time_only_new_files_are_sampled() {
    let dir = disk_dir();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("old"), b"").unwrap();
    let mut scans = Scans::at(dir.path());
    scans.scan(Duration::ZERO, &[]);
    std::fs::write(path("old"), b"123").unwrap();
    std::fs::write(path("new"), b"123").unwrap();
    scans.scan(Duration::ZERO, &[]);
    assert_eq!((scans.size("old"), scans.size("new")), (0, 3));
    scans.scan(Duration::from_secs(100), &[]);
    assert_eq!(scans.size("old"), 3);
}

#[test]
fn files_beyond_a_share_are_left_out_and_come_back() {
    let dir = disk_dir();
    for number in 0..100 {
        let parent = dir.path().join((number % 10).to_string());
        std::fs::create_dir_all(&parent).unwrap();
        std::fs::write(parent.join(number.to_string()), b"").unwrap();
    }
    let mut scans = Scans::at(dir.path());
    let (ample, open) = (Duration::from_secs(100), dir.path().join("3/33"));
    let open = Inode::of(&stat_of_name(&open).unwrap());
    assert_eq!((scans.scan(ample, &[]).len(), scans.tree.kept()), (100, 110));
    scans.most = 30;
    let names = scans.scan(ample, &[open]);
    assert_eq!((names.len(), scans.tree.kept(), scans.tree.left_out.values().sum()), (20, 30, 80));
    assert!(names.contains(&"3/33".to_owned()), "open files stay: {names:?}");
    scans.most = 1000;
    assert_eq!((scans.scan(ample, &[]).len(), scans.tree.left_out.values().sum()), (100, 0));
}

#[test]
fn directories_below_count_as_files() {
    let dir = disk_dir();
    for number in 0..1500 {
        std::fs::create_dir(dir.path().join(number.to_string())).unwrap();
    }
    let mut scans = Scans::at(dir.path());
    scans.scan(Duration::ZERO, &[]);
    assert_eq!((scans.tree.kept(), scans.tree.left_out.values().sum()), (1000, 500));
}

#[test]
fn a_directory_with_very_many_names_is_read_in_part_each_time() {
    let dir = disk_dir();
    let path = |name: &str| dir.path().join(name);
    for name in ["a", "z"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::write(path(name).join("1.ibd"), b"").unwrap();
    }
    let mut scans = Scans::at(dir.path());
    let ample = Duration::from_secs(100);
    assert_eq!(scans.scan(ample, &[]), ["a/1.ibd", "z/1.ibd"]);
    // Names of no kind that is kept, and different ones each time.
    let change = |round: usize| {
        for number in 0..500 {
            std::os::unix::fs::symlink("/", path("a").join(format!("{round}-{number}"))).unwrap();
        }
    };
    scans.most_names = 300;
    for round in 0..3 {
        change(round);
        std::fs::write(path("z").join(format!("{round}.log")), b"").unwrap();
        let names = scans.scan(ample, &[]);
        assert!(names.contains(&"a/1.ibd".to_owned()), "known files stay: {names:?}");
        if round > 0 {
            assert!(names.contains(&format!("z/{round}.log")), "the others come first: {names:?}");
            assert_eq!(scans.gaps, [format!("all names in {}", path("a").display())]);
        }
        assert!(scans.tree.wanted_names() > 1_000_000);
    }
    // The directory is read to its end once there is room, and files that are gone are forgotten
    // then.
    std::fs::remove_file(path("a/1.ibd")).unwrap();
    std::fs::write(path("a/2.ibd"), b"").unwrap();
    scans.most_names = 10_000;
    let names = scans.scan(ample, &[]);
    assert!(names.contains(&"a/2.ibd".to_owned()) && !names.contains(&"a/1.ibd".to_owned()), "{names:?}");
    assert_eq!(scans.gaps, [""; 0]);
}

#[test]
fn unchanged_directories_are_not_reread_for_lack_of_space() {
    let dir = disk_dir();
    for name in 0..500 {
        std::fs::write(dir.path().join(name.to_string()), b"").unwrap();
    }
    settle(dir.path());
    let mut scans = Scans::at(dir.path());
    scans.most_names = 300;
    assert_eq!(scans.scan(Duration::ZERO, &[]).len(), 300);
    assert_eq!((scans.scan(Duration::ZERO, &[]).len(), scans.names), (300, 0));
    assert_eq!(scans.gaps.len(), 1, "it is still said");
    scans.most_names = 400;
    assert_eq!(scans.scan(Duration::ZERO, &[]).len(), 400);
    scans.most_names = 500;
    assert_eq!(scans.scan(Duration::ZERO, &[]).len(), 500);
    assert_eq!(scans.gaps, [""; 0]);
}
