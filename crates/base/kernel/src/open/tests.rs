//! Tests of the opener on real files; attacks on it are in `tests/opener.rs`.

use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, Mode};

use super::*;

#[test]
fn a_fifo_is_refused_at_once_without_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let error = InspectedFile::open(&path, Links::Follow).unwrap_err();
    assert!(error.to_string().contains("a FIFO, not a regular file"), "{error}");
    let parent = open_directory(dir.path(), Links::Refuse).unwrap();
    let error = InspectedFile::open_in(parent.as_fd(), "pipe", ExpectedFile::Any, path).unwrap_err();
    assert!(matches!(error, Error::NotRegular { .. }), "{error}");
}

#[test]
fn a_device_is_refused() {
    let error = InspectedFile::open("/dev/null", Links::Follow).unwrap_err();
    assert!(error.to_string().contains("a character device"), "{error}");
}

#[test]
fn links_are_followed_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("real"), b"x").unwrap();
    let link = dir.path().join("link");
    symlink("real", &link).unwrap();
    assert!(matches!(InspectedFile::open(&link, Links::Refuse).unwrap_err(), Error::SymbolicLink { .. }));
    assert_eq!(InspectedFile::open(&link, Links::Follow).unwrap().size(), 1);
    let parent = open_directory(dir.path(), Links::Refuse).unwrap();
    assert!(InspectedFile::open_in(parent.as_fd(), "link", ExpectedFile::Any, link).is_err());
}

#[test]
fn nothing_beneath_a_directory_leads_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("in")).unwrap();
    std::fs::write(dir.path().join("in/file"), b"x").unwrap();
    std::fs::write(dir.path().join("out"), b"x").unwrap();
    symlink("..", dir.path().join("in/up")).unwrap();
    let parent = open_directory(&dir.path().join("in"), Links::Refuse).unwrap();
    for name in ["up/out", "../out", "up", ".."] {
        let path = || dir.path().join("in").join(name);
        assert!(InspectedFile::open_in(parent.as_fd(), name, ExpectedFile::Any, path()).is_err(), "{name}");
        assert!(
            InspectedFile::open_below(parent.as_fd(), name, ExpectedFile::Any, path()).is_err(),
            "{name}"
        );
    }
    let top = open_directory(dir.path(), Links::Refuse).unwrap();
    let opened = InspectedFile::open_below(top.as_fd(), "in/file", ExpectedFile::Any, "in/file".into());
    assert_eq!(opened.unwrap().size(), 1);
}

#[test]
fn links_above_are_refused_where_all_are() {
    let dir = tempfile::tempdir().unwrap().keep();
    // The path of the temporary directory may contain links.
    let dir = std::fs::canonicalize(dir).unwrap();
    std::fs::create_dir(dir.join("real")).unwrap();
    std::fs::write(dir.join("real/file"), b"x").unwrap();
    symlink("real", dir.join("link")).unwrap();
    symlink("file", dir.join("real/other")).unwrap();
    assert_eq!(InspectedFile::open(dir.join("real/file"), Links::RefuseAll).unwrap().size(), 1);
    assert!(InspectedFile::open(dir.join("link/file"), Links::Refuse).is_ok());
    for refused in ["link/file", "real/other"] {
        let error = InspectedFile::open(dir.join(refused), Links::RefuseAll).unwrap_err();
        assert!(matches!(error, Error::SymbolicLink { .. }), "{error}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn another_file_than_the_expected_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    std::fs::write(&one, b"1").unwrap();
    std::fs::write(&two, b"2").unwrap();
    let inode = InspectedFile::open(&one, Links::Refuse).unwrap().inode();
    let parent = open_directory(dir.path(), Links::Refuse).unwrap();
    let open = |name: &str| {
        InspectedFile::open_in(parent.as_fd(), name, ExpectedFile::Inode(inode), dir.path().join(name))
    };
    assert_eq!(open("one").unwrap().inode(), inode);
    let error = open("two").unwrap_err();
    assert_eq!(error.to_string(), format!("{}: another file has its name now, not opened", two.display()));
    let error = PathHandle::at(dir.path(), Links::Refuse).unwrap().open_directory(ExpectedFile::Inode(inode));
    assert!(matches!(error, Err(Error::OtherFile { .. })));
}

#[test]
fn a_missing_file_is_gone() {
    let error = InspectedFile::open("/nonexistent/file", Links::Refuse).unwrap_err();
    assert!(error.is_gone());
    assert!(!error.is_denied());
}

#[test]
fn the_access_time_is_left_alone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![1; 8192]).unwrap();
    let before = std::fs::metadata(file.path()).unwrap();
    let opened = InspectedFile::open(file.path(), Links::Refuse).unwrap();
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(opened.file(), &mut byte, 0).unwrap();
    let after = std::fs::metadata(file.path()).unwrap();
    assert_eq!((before.atime(), before.atime_nsec()), (after.atime(), after.atime_nsec()));
}

#[test]
fn links_of_the_kernel_are_followed_where_all_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap().join("file");
    std::fs::write(&path, b"x").unwrap();
    let held = std::fs::File::open(&path).unwrap();
    let process = PathBuf::from(format!("/proc/{}", std::process::id()));
    let size = |path: &Path| InspectedFile::open(path, Links::RefuseAll).map(|file| file.size());
    let descriptor = process.join(format!("fd/{}", held.as_raw_fd()));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(size(&descriptor).unwrap(), 1);
    assert!(size(&process.join("exe")).is_ok());
    symlink(&descriptor, &path).unwrap();
    assert!(matches!(size(&path), Err(Error::SymbolicLink { .. })));
}
