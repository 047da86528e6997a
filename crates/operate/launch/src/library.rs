//! The preloaded library: embedded in this program, and stored where a loader can map it.
//!
//! Invariants: its name is a hash of its contents, so versions coexist and a file is never changed,
//! only renamed into place complete. An existing file is used only if it belongs to this user or
//! root, nobody else may write it, and it is identical byte for byte. No link is followed below a
//! directory that only they can change. A directory is usable if the file can be mapped executable
//! there, which is tested. Fails with everything that was tried ([`PlacementError`]).

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pagekeeper_preload::launcher::LIBRARY_PREFIX;
use pagekeeper_text::escaped;

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::sys;

/// The magic number of tmpfs (`linux/magic.h`).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Whether the library was built before this crate, for a program that is linked statically and
/// loads none itself.
pub const IS_LIBRARY_OF_ANOTHER_BUILD: bool = cfg!(carries_another);

/// The library as built; empty if none can be built (a target without glibc).
const LIBRARY_BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/library.so"));

/// `AddressSanitizer`'s library refuses to start if another library comes first, unless its path
/// contains `libasan.so`.
const LIBRARY_SUFFIX: &str = "-before-libasan.so";
/// The suffixes of earlier versions.
const LIBRARY_SUFFIXES: [&str; 2] = [LIBRARY_SUFFIX, ".so"];
/// The threads library, for C libraries that keep it separate.
pub(crate) const THREADS_LIBRARY: &[u8] = b"libpthread.so.0";
/// The paths of glibc in distributions.
const GLIBC_PATHS: [&str; 3] = [
    if cfg!(target_arch = "aarch64") {
        "/lib/aarch64-linux-gnu/libc.so.6"
    } else {
        "/lib/x86_64-linux-gnu/libc.so.6"
    },
    "/lib64/libc.so.6",
    "/lib/libc.so.6",
];
const GLIBC_BANNER: &[u8] = b"release version ";
const STICKY_BIT: u32 = 0o1000;
const OTHERS_WRITE_BITS: u32 = 0o022;

/// The error that no directory was usable; states what was tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlacementError(String);

/// Stores the library and returns its path, which contains no separator of `LD_PRELOAD`.
pub(crate) fn lay_out() -> Result<PathBuf, PlacementError> {
    lay_out_in(&places_here(), LIBRARY_BYTES)
}

/// Creates something beside the library. If that fails (no room; NFS can't preallocate), uses the
/// next usable place.
pub(crate) fn create_beside<T>(
    library: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> Result<T, PlacementError> {
    let first = library.parent().map(Path::to_path_buf);
    let others = places_here().into_iter().filter(|place| Some(place) != first.as_ref());
    let places: Vec<PathBuf> = first.clone().into_iter().chain(others).collect();
    try_places(&places, |place| make(&own_directory(place)?)).map_err(PlacementError)
}

/// Creates something in a place on tmpfs: on a disk that fills up later, a signal would end whoever
/// writes to a mapping.
pub(crate) fn create_in_memory<T>(
    library: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> Result<T, PlacementError> {
    create_beside(library, |directory| match rustix::fs::statfs(directory)?.f_type {
        TMPFS_MAGIC => make(directory),
        _ => Err(io::Error::other("not in memory")),
    })
}

fn lay_out_in(places: &[PathBuf], library: &[u8]) -> Result<PathBuf, PlacementError> {
    if library.is_empty() {
        return Err(PlacementError(
            "this pagekeeper was built without the library, which needs glibc".to_owned(),
        ));
    }
    try_places(places, |place| place_in(place, library))
        .map_err(|tried| PlacementError(format!("the library can't be laid out anywhere ({tried})")))
}

/// Returns the result in the first place where it succeeds, or everything that was tried.
fn try_places<T>(places: &[PathBuf], attempt: impl Fn(&Path) -> io::Result<T>) -> Result<T, String> {
    let mut tried = String::new();
    for place in places {
        match attempt(place) {
            Ok(made) => return Ok(made),
            Err(error) => {
                let separator = if tried.is_empty() { "" } else { "; " };
                // Writing to a String can't fail.
                let _ = write!(tried, "{separator}{}: {error}", escaped(place));
            }
        }
    }
    Err(tried)
}

/// Whether this version of the C library has a separate threads library, which a program without
/// threads does not load. The preloaded library uses threads.
pub(crate) fn keeps_threads_apart(version: Option<&str>) -> bool {
    let mut numbers = version.unwrap_or_default().split('.').map(|number| number.parse().unwrap_or(u32::MAX));
    (numbers.next(), numbers.next()) < (Some(2), Some(34)) && version.is_some()
}

/// Returns the version of the host's glibc: that of this program, or, if this program uses another
/// C library, the version in the host's glibc file.
pub(crate) fn glibc() -> Option<String> {
    sys::c_library()
        .map(str::to_owned)
        .or_else(|| GLIBC_PATHS.iter().find_map(|path| version_in(&std::fs::read(path).ok()?)))
}

/// Returns the version that glibc prints when it is run: "… stable release version 2.36.".
fn version_in(library: &[u8]) -> Option<String> {
    let at =
        library.windows(GLIBC_BANNER.len()).position(|bytes| bytes == GLIBC_BANNER)? + GLIBC_BANNER.len();
    let version = library[at..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    let version: String = version.map(|&byte| char::from(byte)).collect();
    Some(version.trim_end_matches('.').to_owned())
}

/// Whether a file with this name is the library, in any version.
pub(crate) fn is_library(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let rest = name.strip_prefix(LIBRARY_PREFIX.as_bytes());
    let mut hashes = LIBRARY_SUFFIXES.iter().filter_map(|suffix| rest?.strip_suffix(suffix.as_bytes()));
    hashes.any(|hash| hash.len() == 16 && hash.iter().all(u8::is_ascii_hexdigit))
}

fn places_here() -> Vec<PathBuf> {
    places(|name| std::env::var_os(name).map(PathBuf::from))
}

/// Returns the possible places, best first: places that last as long as a server may run and start
/// others come first; those that a log-out or a cleaner removes come last.
fn places(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let user = rustix::process::geteuid();
    let root = user.is_root();
    let given = |name: &str| variable(name).filter(|path| path.is_absolute());
    let cache = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")));
    [
        root.then(|| PathBuf::from("/run/pagekeeper")),
        root.then(|| PathBuf::from("/var/lib/pagekeeper")),
        cache.map(|path| path.join("pagekeeper")),
        given("XDG_RUNTIME_DIR").map(|path| path.join("pagekeeper")),
        Some(PathBuf::from(format!("/dev/shm/pagekeeper-{}", user.as_raw()))),
        Some(PathBuf::from(format!("/tmp/pagekeeper-{}", user.as_raw()))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Stores it in one directory.
fn place_in(directory: &Path, library: &[u8]) -> io::Result<PathBuf> {
    let directory = own_directory(directory)?;
    let hash = Sha256::digest(library);
    let mut name = LIBRARY_PREFIX.to_owned();
    for byte in &hash[..8] {
        let _ = write!(name, "{byte:02x}");
    }
    name.push_str(LIBRARY_SUFFIX);
    let path = directory.join(name);
    let odd = |byte: &u8| matches!(byte, b' ' | b':' | b'\n');
    if path.to_str().is_none_or(|path| path.as_bytes().iter().any(odd)) {
        return Err(io::Error::other("a loader takes no name with spaces or colons"));
    }
    let file = match there_already(&path, library) {
        Some(file) => file,
        None => write(&directory, &path, library)?,
    };
    sys::may_execute(&file).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::other("nothing may be executed there"),
        _ => error,
    })?;
    Ok(path)
}

/// Returns the directory, created if needed: it belongs to this user or root, and nobody else can
/// put files into it or replace it.
fn own_directory(directory: &Path) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // The administrator's links may lead to the parent (/var/run): only their target is checked.
    let parent = match (parent.canonicalize(), parent.parent()) {
        // ~/.cache of a new user: nothing is created in another user's home.
        (Err(error), Some(home)) if error.kind() == io::ErrorKind::NotFound => {
            check_above(&home.canonicalize()?)?;
            DirBuilder::new().mode(0o700).create(parent)?;
            parent.canonicalize()?
        }
        (parent, _) => parent?,
    };
    check_above(&parent)?;
    let directory = parent.join(name);
    match DirBuilder::new().mode(0o755).create(&directory) {
        // The umask may have removed permissions that a server's own user needs.
        Ok(()) => std::fs::set_permissions(&directory, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let metadata = directory.symlink_metadata()?;
    if !metadata.is_dir() || !is_trusted(metadata.uid()) || metadata.mode() & OTHERS_WRITE_BITS != 0 {
        return Err(io::Error::other("it is there, and not a directory of this user alone"));
    }
    Ok(directory)
}

/// Checks that nobody but this user and root can replace this directory.
fn check_above(directory: &Path) -> io::Result<()> {
    for above in directory.ancestors() {
        let metadata = above.symlink_metadata()?;
        // In a sticky directory such as /tmp, others can't remove foreign files.
        let open = metadata.mode() & OTHERS_WRITE_BITS != 0 && metadata.mode() & STICKY_BIT == 0;
        if open || !is_trusted(metadata.uid()) {
            return Err(io::Error::other(format!("others can change {}", escaped(above))));
        }
    }
    Ok(())
}

fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}

/// Returns the existing file, if it can be trusted.
fn there_already(path: &Path, library: &[u8]) -> Option<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let own = metadata.is_file() && is_trusted(metadata.uid()) && metadata.mode() & OTHERS_WRITE_BITS == 0;
    if !own || metadata.len() != library.len() as u64 || metadata.mode() & 0o444 != 0o444 {
        return None;
    }
    let mut bytes = Vec::with_capacity(library.len());
    file.read_to_end(&mut bytes).ok()?;
    (bytes == library).then_some(file)
}

/// Writes it under another name and renames it into place: an existing file is replaced, not
/// followed.
fn write(directory: &Path, path: &Path, library: &[u8]) -> io::Result<File> {
    let mut file = tempfile::Builder::new().prefix(".").tempfile_in(directory)?;
    file.write_all(library)?;
    file.as_file().set_permissions(Permissions::from_mode(0o444))?;
    // Open for reading only, so that it can be executed.
    let readable = File::open(file.path())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(readable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    const BYTES: &[u8] = b"a library";

    fn base() -> tempfile::TempDir {
        // Not below another user's directory, whoever runs this.
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn it_is_laid_out_once_under_the_name_of_its_content() {
        let dir = base();
        let place = dir.path().join("cache/pagekeeper");
        let path = lay_out_in(std::slice::from_ref(&place), BYTES).unwrap();
        assert!(is_library(path.as_os_str().as_encoded_bytes()), "{path:?}");
        assert_eq!((mode(&place), mode(&path)), (0o755, 0o444));
        assert_eq!(std::fs::read(&path).unwrap(), BYTES);
        let inode = path.metadata().unwrap().ino();
        assert_eq!(lay_out_in(std::slice::from_ref(&place), BYTES).unwrap(), path);
        assert_eq!(path.metadata().unwrap().ino(), inode, "it was written again");
        let other = lay_out_in(std::slice::from_ref(&place), b"another").unwrap();
        assert_ne!(other, path);
        assert_eq!(place.read_dir().unwrap().count(), 2, "something else was left");
    }

    #[test]
    fn a_planted_file_is_never_used() {
        let dir = base();
        let place = dir.path().join("p");
        let path = lay_out_in(std::slice::from_ref(&place), BYTES).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "untouched").unwrap();
        let plant: [&dyn Fn(); 4] = [
            &|| std::fs::write(&path, "evil bytes").unwrap(),
            &|| std::os::unix::fs::symlink(&elsewhere, &path).unwrap(),
            &|| {
                std::fs::write(&path, BYTES).unwrap();
                std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            },
            &|| rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap(),
        ];
        for plant in plant {
            std::fs::remove_file(&path).unwrap();
            plant();
            assert_eq!(lay_out_in(std::slice::from_ref(&place), BYTES).unwrap(), path);
            assert!(path.symlink_metadata().unwrap().is_file() && mode(&path) == 0o444);
            assert_eq!(std::fs::read(&path).unwrap(), BYTES);
            assert_eq!(std::fs::read(&elsewhere).unwrap(), b"untouched");
        }
    }

    #[test]
    fn directories_that_others_can_change_are_passed_over() {
        let dir = base();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let linked = dir.path().join("linked");
        std::os::unix::fs::symlink(dir.path(), &linked).unwrap();
        let spaced = dir.path().join("with space");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let refused =
            [open.clone(), open.join("below"), linked, spaced, file, PathBuf::from("/proc/pagekeeper")];
        for place in &refused {
            let error = lay_out_in(std::slice::from_ref(place), BYTES).unwrap_err().to_string();
            assert!(error.contains(place.to_str().unwrap()), "{error}");
        }
        let good = dir.path().join("good");
        let all: Vec<PathBuf> = refused.into_iter().chain([good.clone()]).collect();
        assert_eq!(lay_out_in(&all, BYTES).unwrap().parent().unwrap(), good.canonicalize().unwrap());
        // Like /tmp: others can create files there, but not replace this one.
        std::fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        assert!(lay_out_in(&[open.join("mine")], BYTES).is_ok());
        assert!(lay_out_in(&[good], b"").unwrap_err().to_string().contains("without the library"));
    }

    #[test]
    fn only_absolute_directories_are_taken_from_the_environment() {
        let all = places(|name| Some(if name == "HOME" { "/home/u".into() } else { "relative".into() }));
        assert!(all.iter().all(|place| place.is_absolute()), "{all:?}");
        assert!(all.contains(&"/home/u/.cache/pagekeeper".into()), "{all:?}");
        let given = places(|name| (name != "HOME").then(|| Path::new("/x").join(name)));
        assert!(given.contains(&"/x/XDG_RUNTIME_DIR/pagekeeper".into()), "{given:?}");
        assert!(given.contains(&"/x/XDG_CACHE_HOME/pagekeeper".into()), "{given:?}");
    }

    #[test]
    fn older_c_libraries_keep_threads_apart() {
        let expected = [(Some("2.31"), true), (Some("2.33.9000"), true), (Some("2.34"), false)];
        for (version, apart) in
            expected.into_iter().chain([(Some("3.0"), false), (Some("?"), false), (None, false)])
        {
            assert_eq!(keeps_threads_apart(version), apart, "{version:?}");
        }
    }

    #[test]
    fn glibc_is_recognized_by_its_file() {
        let file = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(version_in(file).as_deref(), Some("2.36"));
        assert_eq!(
            version_in(b"GNU C Library development release version 2.33.9000.\n").as_deref(),
            Some("2.33.9000")
        );
        assert_eq!(version_in(b"musl"), None);
        // A glibc build reports the same version as the file it has loaded.
        let read = GLIBC_PATHS.iter().find_map(|path| version_in(&std::fs::read(path).ok()?));
        assert_eq!(read.or_else(glibc), glibc());
    }

    #[test]
    fn the_library_is_known_by_its_name() {
        for (path, expected) in [
            ("/run/pagekeeper/libpagekeeper-0123456789abcdef.so", true),
            ("libpagekeeper-0123456789abcdef.so", true),
            ("/run/pagekeeper/libpagekeeper-0123456789abcdef-before-libasan.so", true),
            ("/x/libpagekeeper-0123456789abcde.so", false),
            ("/x/libpagekeeper-0123456789abcdeg.so", false),
            ("/libpagekeeper-0123456789abcdef.so/x", false),
            ("", false),
        ] {
            assert_eq!(is_library(OsStr::new(path).as_encoded_bytes()), expected, "{path}");
        }
    }
}
