//! Saved disk measurements: one TOML file per file system, where the guard and the doctor find
//! them.
//!
//! Invariants: a profile is written to a temporary file, synced and renamed, so that readers see
//! the old one or the new one in full. A profile for another type of file system, of an unknown
//! version or with unknown keys is never used: it is an error, or does not belong to the directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::hang;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{FileSystem, Links, file_system_id, open_directory, read_named};
use pagekeeper_policy::DiskProfile;
use pagekeeper_text::escaped;
use serde::Deserialize;

use crate::config_file::{CONFIG_BYTES_MAX, quoted, utf8};

/// The directory of saved profiles, each named by the ID of its file system and ".toml".
pub const PROFILE_DIRECTORY: &str = "/var/lib/pagekeeper/disks";

/// The reason for which a profile could not be read, saved or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is not a directory.
    #[error("{}: not a directory: name the directory that a database's files are to lie in", escaped(path))]
    NotADirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{call} {}: {source}", escaped(path))]
    Call {
        /// The call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The kernel could not be queried.
    #[error(transparent)]
    Kernel(#[from] pagekeeper_kernel::Error),
    /// A profile can't be parsed; the message names line and key.
    #[error("{}: not a profile of a disk: {message}", escaped(path))]
    Text {
        /// The file.
        path: PathBuf,
        /// The error in it.
        message: String,
    },
    /// A profile was written by a newer pagekeeper.
    #[error(
        "{}: a profile of version {version}, which this pagekeeper does not know: use a newer one, or measure again \
         with \"pagekeeper probe\"",
        escaped(path)
    )]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// The version it states.
        version: u64,
    },
    /// The file system has no ID to find its profile by.
    #[error(
        "{}: this file system ({kind}) has no number of its own to find its profile by: name a file for it",
        escaped(path)
    )]
    NoNumber {
        /// The directory.
        path: PathBuf,
        /// The type of the file system.
        kind: String,
    },
}

/// The result of reading, saving or finding a profile.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn call(call: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Call { call, path: path.to_path_buf(), source }
    }
}

/// The part common to all versions.
#[derive(Deserialize)]
struct VersionHeader {
    version: u64,
}

/// Reads a profile from a file.
///
/// Returns an error with line and key if it is not a profile, or if its version is unknown.
pub fn read(path: &Path) -> Result<DiskProfile> {
    let refused = |message: String| Error::Text { path: path.to_path_buf(), message };
    let text = utf8(read_named(path, CONFIG_BYTES_MAX)?).map_err(refused)?;
    let refuse = |error: &toml::de::Error| refused(quoted(error));
    let VersionHeader { version } = toml::from_str(&text).map_err(|error| refuse(&error))?;
    if !(1..=u64::from(DiskProfile::VERSION)).contains(&version) {
        return Err(Error::UnknownVersion { path: path.to_path_buf(), version });
    }
    toml::from_str(&text).map_err(|error| refuse(&error))
}

/// Writes a profile to a file, atomically replacing an existing one. The file is durable when this
/// returns.
#[allow(clippy::disallowed_methods, reason = "the directory of this program's own files")]
pub fn write(profile: &DiskProfile, path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::call("write", path, error);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let text = toml::to_string(profile)
        .map_err(|error| Error::Text { path: path.to_path_buf(), message: error.to_string() })?;
    let mut aside = tempfile::Builder::new()
        .prefix(".profile-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(failed)?;
    aside.write_all(b"# What \"pagekeeper probe\" measured of this file system; bytes, microseconds, rates a second.\n")
        .and_then(|()| aside.write_all(text.as_bytes()))
        .and_then(|()| aside.as_file().sync_all())
        .map_err(failed)?;
    aside.persist(path).map_err(|error| failed(error.error))?;
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Saves a profile in [`PROFILE_DIRECTORY`], which is created if missing. Returns the file's path.
pub fn save(profile: &DiskProfile, directory: &Path) -> Result<PathBuf> {
    save_in(Path::new(PROFILE_DIRECTORY), profile, directory)
}

/// Saves a profile as [`save`] does, in the directory `disks`. `directory` is the measured
/// directory, for errors.
pub fn save_in(disks: &Path, profile: &DiskProfile, directory: &Path) -> Result<PathBuf> {
    let Some(name) = file_name(&profile.file_system_id) else {
        let kind = profile.file_system.clone();
        return Err(Error::NoNumber { path: directory.to_path_buf(), kind });
    };
    std::fs::create_dir_all(disks).map_err(|error| Error::call("make", disks, error))?;
    let path = disks.join(name);
    write(profile, &path)?;
    Ok(path)
}

/// Returns the saved profile of the file system of a directory; `None` if none was saved.
///
/// ```
/// match pagekeeper_catalog::disks::saved("/var/tmp".as_ref())? {
///     Some(profile) => println!("measured on Linux {}", profile.kernel),
///     None => println!("not measured: pagekeeper probe /var/tmp --save"),
/// }
/// # Ok::<(), pagekeeper_catalog::disks::Error>(())
/// ```
pub fn saved(directory: &Path) -> Result<Option<DiskProfile>> {
    saved_in(Path::new(PROFILE_DIRECTORY), directory)
}

/// Returns the profile of the file system of a directory: the first of `given` that matches, or
/// else the saved one.
///
/// Fails as [`saved`] does.
pub fn of(given: &[DiskProfile], directory: &Path) -> Result<Option<DiskProfile>> {
    for profile in given {
        if is_of(profile, directory)? {
            return Ok(Some(profile.clone()));
        }
    }
    saved(directory)
}

/// Returns the saved profile as [`saved`] does, from the directory `disks`.
pub fn saved_in(disks: &Path, directory: &Path) -> Result<Option<DiskProfile>> {
    // Without a disk, nothing can have been measured.
    let Some(there) = FileSystemIdentity::directory(directory)? else { return Ok(None) };
    let Some(name) = there.id.as_deref().and_then(file_name) else { return Ok(None) };
    match read(&disks.join(name)) {
        // XFS uses the number of its device, which may have belonged to another file system before.
        Ok(profile) => Ok((profile.file_system == there.kind).then_some(profile)),
        Err(Error::Kernel(error)) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file system of a directory, as a profile identifies it.
struct FileSystemIdentity {
    /// The type as in the mount table, such as `ext4`.
    kind: String,
    /// `None` if it has no ID.
    id: Option<String>,
}

impl FileSystemIdentity {
    /// Returns `None` if there is no disk below it.
    fn directory(path: &Path) -> Result<Option<Self>> {
        let call = hang::announce(path)?;
        let metadata = std::fs::metadata(path).map_err(|error| Error::call("stat", path, error))?;
        if !metadata.is_dir() {
            return Err(Error::NotADirectory { path: path.to_path_buf() });
        }
        drop(call);
        let open = open_directory(path, Links::Follow)?;
        let kind = FileSystem::of(&open, path)?;
        if kind.release_refusal().is_some() {
            return Ok(None);
        }
        let mount = ProcRoot::default().own_mount_of(&open);
        let kind = mount.map_or_else(|| kind.to_string(), |mount| mount.kind);
        Ok(Some(Self { kind, id: file_system_id(path)? }))
    }
}

/// Returns `None` for a file system without an ID.
fn file_name(id: &str) -> Option<String> {
    let is_number = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_number && id.bytes().any(|byte| byte != b'0')).then(|| format!("{id}.toml"))
}

/// Whether a profile belongs to the file system of a directory.
pub fn is_of(profile: &DiskProfile, directory: &Path) -> Result<bool> {
    let there = FileSystemIdentity::directory(directory)?;
    Ok(there.is_some_and(|there| {
        there.id.is_some_and(|id| id == profile.file_system_id) && there.kind == profile.file_system
    }))
}

#[cfg(test)]
mod tests {
    use pagekeeper_policy::{BulkProfile, DepthProfile, DirectProfile, MixedProfile, UncachedProfile};

    use super::*;
    use pagekeeper_testing::disk_dir;

    /// Returns a profile with a value in every field.
    fn full(directory: &Path) -> DiskProfile {
        let place = FileSystemIdentity::directory(directory).unwrap().unwrap();
        DiskProfile {
            measured_at: 1_700_000_000,
            kernel: "6.18.0".to_owned(),
            file_system: place.kind,
            device: "8:1".to_owned(),
            file_system_id: place.id.unwrap_or_else(|| "0000000000000000".to_owned()),
            file_bytes: 1 << 30,
            read_ahead_bytes: Some(131_072),
            small_read_bytes: Some(16_384),
            direct: Some(DirectProfile { memory_alignment: 512, offset_alignment: 4096 }),
            mixed: Some(MixedProfile { leftover_read: Some(0.99), ..MixedProfile::default() }),
            uncached: UncachedProfile { append: true, overwrite: false },
            atomic_write_bytes_max: Some(16_384),
            reads: vec![
                DepthProfile { depth: 1, per_second: 500.5, p50_us: 2000.0, p99_us: 2100.0 },
                DepthProfile { depth: 4, per_second: 2000.0, p50_us: 2000.0, p99_us: 2100.0 },
            ],
            sync_us: Some(80.5),
            release_us_per_gib: Some(3000.0),
            bulk: Some(BulkProfile { idle_us: 20.0, direct_us: Some(25.0), ..BulkProfile::default() }),
            ..DiskProfile::default()
        }
    }

    #[test]
    fn written_values_parse_back() {
        let dir = disk_dir();
        let path = dir.path().join("disk.toml");
        for profile in [full(dir.path()), DiskProfile::default()] {
            write(&profile, &path).unwrap();
            assert_eq!(read(&path).unwrap(), profile);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left aside");
    }

    #[test]
    fn a_saved_profile_is_found_by_its_file_system_alone() {
        let dir = disk_dir();
        let disks = dir.path().join("a/b");
        assert_eq!(saved_in(&disks, dir.path()).unwrap(), None);
        let profile = full(dir.path());
        let path = match save_in(&disks, &profile, dir.path()) {
            Ok(path) => path,
            // An overlay, for example.
            Err(Error::NoNumber { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(saved_in(&disks, dir.path()).unwrap(), Some(profile.clone()));
        assert!(is_of(&profile, dir.path()).unwrap());
        assert_eq!(saved_in(&disks, Path::new("/dev/shm")).unwrap(), None);
        // The device's number belonged to another file system before.
        let other = DiskProfile { file_system: "other".to_owned(), ..profile };
        assert!(!is_of(&other, dir.path()).unwrap());
        write(&other, &path).unwrap();
        assert_eq!(saved_in(&disks, dir.path()).unwrap(), None);
        let nameless = DiskProfile { file_system_id: "0000000000000000".to_owned(), ..other };
        assert!(matches!(save_in(&disks, &nameless, dir.path()), Err(Error::NoNumber { .. })));
    }

    #[test]
    fn errors_name_line_and_key() {
        let dir = disk_dir();
        let path = dir.path().join("disk.toml");
        write(&full(dir.path()), &path).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for (text, said) in [
            (good.replace("version = 1", "version = 2"), "version 2, which this pagekeeper does not know"),
            (good.replace("version = 1", "version = 0"), "version 0, which"),
            (good.replace("version = 1\n", ""), "version"),
            (good.replace("sync_us", "sink_us"), "sink_us"),
            (good.replace("p50_us", "p51_us"), "p51_us"),
            ("tick = \"500ms\"\n".to_owned(), "not a profile of a disk"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("disk.toml"), "{error}");
        }
        let missing = read(Path::new("/nowhere.toml")).unwrap_err().to_string();
        assert_eq!(missing, "open /nowhere.toml: No such file or directory (os error 2)");
        std::fs::write(&path, vec![b'#'; (2 << 20) as usize]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than"));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&pipe).unwrap_err().to_string().contains("not a regular file"), "nor is it waited for");
    }
}
