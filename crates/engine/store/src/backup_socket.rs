//! Backups on request: a process asks the one that has the store open for a backup, over a socket
//! in the store's directory.
//!
//! The process that has the store open makes the backup with its own permissions, and answers when
//! the backup is made. It serves one request at a time. The caller then confirms what the answer
//! says ([`crate::confirm`]). All numbers are little endian.
//!
//! | request | bytes |
//! |---|---|
//! | [`REQUEST_MAGIC`] | 8 |
//! | [`KIND_BACKUP`] | 1 |
//! | the pace: 0 auto, 1 off, 2 idle, 3 a rate | 8 |
//! | the rate in bytes per second, else zero | 8 |
//! | length of the destination's path | 2 |
//! | the path, which is absolute | its length |
//!
//! | answer | bytes | or, where it failed | bytes |
//! |---|---|---|---|
//! | [`KIND_BACKUP`] | 1 | [`KIND_FAILED`] | 1 |
//! | the numbers of a [`Backup`], with a zero before its commit | 64 | length of the message | 2 |
//! | | | the error message | its length |
//!
//! Invariants: the kernel confirms that the caller is the user that this process runs as, or root.
//! A request that is incomplete after [`REQUEST_TIMEOUT`] is dropped. The socket exists as long as
//! the store is open; one that a killed process left is replaced. The store is read and written
//! only by `Store::backup`.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagekeeper_policy::stream_pace::StreamPace;
use rustix::net::Shutdown;

use crate::core::Core;
use crate::names::BACKUP_SOCKET_NAME;
use crate::{Backup, Error, Seq, confirm, threads};

const REQUEST_MAGIC: &[u8; 8] = b"pkbackup";
const KIND_BACKUP: u8 = 0;
const KIND_FAILED: u8 = 2;
/// The longest wait for the bytes of a request, and for the caller to take its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum bytes of a path, and of an error message.
const TEXT_BYTES_MAX: usize = 4096;
/// The maximum bytes of a socket's path, without the zero byte that ends it (`sun_path` of
/// unix(7)).
const ADDRESS_BYTES_MAX: usize = 107;

/// A thread that answers requests for backups, and its socket; dropping it ends the thread and
/// removes the socket.
#[derive(Debug)]
pub(crate) struct BackupServer {
    listener: Arc<UnixListener>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

/// Makes the socket, and starts the thread.
pub(crate) fn start(core: &Arc<Core>) -> Result<BackupServer, Error> {
    let path = core.config.directory.join(BACKUP_SOCKET_NAME);
    // The store is locked, so no other process can be serving here.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("unlink", &path, &error)),
        _ => {}
    }
    let listener = at_address(&path, |address| UnixListener::bind(address))
        .map_err(|error| failed("bind", &path, &error))?;
    let listener = Arc::new(listener);
    let stopping = Arc::new(AtomicBool::new(false));
    let thread = {
        let (core, listener, stopping) = (Arc::clone(core), Arc::clone(&listener), Arc::clone(&stopping));
        let name = "store_backups";
        let run = move || answer_all(&core, &listener, &stopping);
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        thread.map_err(|error| threads::not_started(name, &error))?
    };
    Ok(BackupServer { listener, stopping, thread: Some(thread), path })
}

impl Drop for BackupServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the thread. Fails only if the thread has ended.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer_all(core: &Core, listener: &UnixListener, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((client, _)) => {
                // A caller that has gone, or whose request is malformed, gets no answer.
                let _ = answer(core, &client);
            }
            // The process may be out of descriptors.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(core: &Core, mut client: &UnixStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    client.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let user = rustix::net::sockopt::socket_peercred(client)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let (to, pace) = read_request(&mut client)?;
    client.write_all(&encode(&core.backup(&to, pace)))
}

/// Returns the path that the backup is to have, and its pace.
fn read_request(from: &mut impl Read) -> std::io::Result<(PathBuf, StreamPace)> {
    let invalid = || std::io::Error::from(ErrorKind::InvalidData);
    let mut head = [0; 27];
    from.read_exact(&mut head)?;
    let len = usize::from(u16::from_le_bytes([head[25], head[26]]));
    if &head[..8] != REQUEST_MAGIC || head[8] != KIND_BACKUP || len > TEXT_BYTES_MAX {
        return Err(invalid());
    }
    let pace = decode_pace([number(&head[9..]), number(&head[17..])]).ok_or_else(invalid)?;
    let mut path = vec![0; len];
    from.read_exact(&mut path)?;
    let to = PathBuf::from(OsStr::from_bytes(&path));
    // The caller's working directory is not known here.
    if to.is_absolute() { Ok((to, pace)) } else { Err(invalid()) }
}

/// Returns the kind of a pace, and its rate.
fn encode_pace(pace: StreamPace) -> [u64; 2] {
    match pace {
        StreamPace::Auto => [0, 0],
        StreamPace::Off => [1, 0],
        StreamPace::Idle => [2, 0],
        StreamPace::BytesPerSecond(rate) => [3, rate],
    }
}

fn decode_pace(numbers: [u64; 2]) -> Option<StreamPace> {
    match numbers {
        [0, 0] => Some(StreamPace::Auto),
        [1, 0] => Some(StreamPace::Off),
        [2, 0] => Some(StreamPace::Idle),
        [3, rate] if rate > 0 => Some(StreamPace::BytesPerSecond(rate)),
        _ => None,
    }
}

/// Encodes a request; `None` where the path is too long.
fn encode_request(to: &Path, pace: StreamPace) -> Option<Vec<u8>> {
    let path = to.as_os_str().as_bytes();
    let len = u16::try_from(path.len()).ok().filter(|len| usize::from(*len) <= TEXT_BYTES_MAX)?;
    let pace = encode_pace(pace).map(u64::to_le_bytes).concat();
    let parts: [&[u8]; 5] = [REQUEST_MAGIC, &[KIND_BACKUP], &pace, &len.to_le_bytes(), path];
    Some(parts.concat())
}

/// Encodes an answer.
fn encode(made: &Result<Backup, Error>) -> Vec<u8> {
    match made {
        Ok(made) => {
            let Backup { store, page_size, seq, pages, bytes, snapshots, took } = *made;
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let numbers = [store, page_size as u64, 0, seq.get(), pages, bytes, snapshots, nanos];
            [&[KIND_BACKUP][..], &numbers.map(u64::to_le_bytes).concat()].concat()
        }
        Err(error) => {
            let text = error.to_string();
            let words = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
            let len = u16::try_from(words.len()).unwrap_or(0);
            [&[KIND_FAILED], &len.to_le_bytes()[..], words].concat()
        }
    }
}

/// Reads an answer: the backup, or the error message.
fn read_answer(from: &mut impl Read) -> std::io::Result<Result<Backup, String>> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    if kind[0] == KIND_FAILED {
        let mut len = [0; 2];
        from.read_exact(&mut len)?;
        let mut words = vec![0; usize::from(u16::from_le_bytes(len))];
        from.read_exact(&mut words)?;
        return Ok(Err(pagekeeper_text::escaped(OsStr::from_bytes(&words)).to_string()));
    }
    if kind[0] != KIND_BACKUP {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = [0; 64];
    from.read_exact(&mut bytes)?;
    let [store, page_size, _, seq, pages, bytes, snapshots, nanos] =
        std::array::from_fn(|at| number(&bytes[8 * at..]));
    let took = Duration::from_nanos(nanos);
    let page_size = usize::try_from(page_size).map_err(|_| ErrorKind::InvalidData)?;
    Ok(Ok(Backup { store, page_size, seq: Seq::new(seq), pages, bytes, snapshots, took }))
}

/// Has the process that has a store open make a backup of it, and confirms that it is there.
pub(crate) fn request_backup(directory: &Path, to: &Path, pace: StreamPace) -> Result<Backup, Error> {
    let began = Instant::now();
    let to = std::path::absolute(to).map_err(|error| failed("getcwd", to, &error))?;
    let Some(request) = encode_request(&to, pace) else {
        return Err(failed("connect", &to, &std::io::Error::from_raw_os_error(libc::ENAMETOOLONG)));
    };
    let mut stream = connect(directory)?;
    confirm::require_missing(&to)?;
    // Read before the backup, which has all commits that this superblock covers. Needed only if a
    // backup is made.
    let source = confirm::superblock_of(directory);
    let answer = stream.write_all(&request).and_then(|()| read_answer(&mut stream));
    let said = understand(answer)
        .map_err(|reason| Error::BackupRefused { path: directory.to_path_buf(), reason })?;
    let found = confirm::confirm(&said, &source?, &to)?;
    Ok(Backup { took: began.elapsed(), ..found })
}

fn connect(directory: &Path) -> Result<UnixStream, Error> {
    let socket = directory.join(BACKUP_SOCKET_NAME);
    at_address(&socket, |address| UnixStream::connect(address)).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            Error::NoBackupsServed { path: directory.to_path_buf() }
        }
        _ => failed("connect", &socket, &error),
    })
}

/// Returns the backup that the answer describes, or why there is none.
fn understand(answer: std::io::Result<Result<Backup, String>>) -> Result<Backup, String> {
    answer.unwrap_or_else(|error| {
        let reason = if error.kind() == ErrorKind::InvalidData {
            "its answer makes no sense: it is another version of pagekeeper"
        } else {
            "it ended, or did not take the request of this user: remove what it may have begun"
        };
        Err(reason.to_owned())
    })
}

/// Calls with an address for the socket's path, which may be longer than addresses are.
fn at_address<T>(path: &Path, call: impl Fn(&Path) -> std::io::Result<T>) -> std::io::Result<T> {
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return call(path);
    }
    let directory = std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    call(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(BACKUP_SOCKET_NAME))
}

fn failed(call: &'static str, path: &Path, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Error::Io(pagekeeper_io::Error::Call { call, path: path.to_path_buf(), errno })
}

/// Reads the number at the beginning of at least eight bytes.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Store};

    fn store(directory: &Path) -> Store {
        let options = Store::options().journal_bytes(1 << 20).serve_backups(true);
        options.open(directory).unwrap()
    }

    fn commit(store: &Store) -> Seq {
        let mut txn = store.begin_write().unwrap();
        let page = txn.allocate().unwrap();
        txn.page_mut(page).unwrap()[0] = 1;
        txn.commit(Durability::Sync).unwrap()
    }

    #[test]
    fn a_store_that_is_open_is_backed_up_on_request() {
        let dir = pagekeeper_testing::disk_dir();
        // Its path is longer than a socket address can be.
        let directory = dir.path().join("d".repeat(100)).join("store");
        std::fs::create_dir(directory.parent().unwrap()).unwrap();
        let at = |name: &str| dir.path().join(name);
        let store = store(&directory);
        let seq = commit(&store);
        let whole = Store::request_backup(&directory, at("whole")).unwrap();
        assert_eq!((whole.seq, whole.pages, whole.page_size), (seq, 1, 4096));
        let next = commit(&store);
        let later = Store::request_backup(&directory, at("later")).unwrap();
        assert_eq!((later.store, later.seq, later.pages), (whole.store, next, 2));
        let refused = Store::request_backup(&directory, at("whole")).unwrap_err();
        assert!(refused.to_string().contains("there already"), "{refused}");
        store.close().unwrap();
        assert!(!directory.join(BACKUP_SOCKET_NAME).exists());
        let none = Store::request_backup(&directory, at("more")).unwrap_err();
        assert!(matches!(none, Error::NoBackupsServed { .. }), "{none}");
        let restored = Store::options().restore(at("later"), at("restored")).unwrap();
        assert_eq!(restored.seq, next);
        assert_eq!(Store::options().open(at("whole")).unwrap().stats().seq, seq);
    }

    /// Makes a backup, or something else, at the path.
    type Make = Box<dyn FnOnce(&Path) + Send>;

    /// Answers one request at the store's socket with the backup that `make` returns.
    fn answer_once(directory: &Path, make: impl FnOnce(&Path) -> Backup + Send + 'static) -> JoinHandle<()> {
        let _ = std::fs::remove_file(directory.join(BACKUP_SOCKET_NAME));
        let listener = UnixListener::bind(directory.join(BACKUP_SOCKET_NAME)).unwrap();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let (to, _) = read_request(&mut client).unwrap();
            client.write_all(&encode(&Ok(make(&to)))).unwrap();
        })
    }

    /// Only a backup that exists is confirmed, whatever the process at the socket answers.
    #[test]
    fn a_backup_that_differs_from_the_request_is_not_confirmed() {
        let dir = pagekeeper_testing::disk_dir();
        let at = |name: &str| dir.path().join(name);
        let options = || Store::options().journal_bytes(1 << 20);
        let (store, other) = (options().open(at("store")).unwrap(), options().open(at("other")).unwrap());
        commit(&store);
        commit(&other);
        let old = store.backup(at("old")).unwrap();
        commit(&store);
        store.sync().unwrap();
        let whole = store.backup(at("whole")).unwrap();
        let others = other.backup(at("others")).unwrap();
        let late = Backup { seq: whole.seq + 1, ..whole };
        let exaggerated = Backup { bytes: 1 << 60, took: Duration::MAX, page_size: 1, ..whole };
        let copy = |from: &str, rot: bool| {
            let from = at(from);
            move |to: &Path| {
                Store::options().restore(&from, to).unwrap();
                if rot {
                    let data = std::fs::File::options().write(true).open(to.join("data")).unwrap();
                    std::os::unix::fs::FileExt::write_all_at(&data, b"rot", 4096 + 100).unwrap();
                }
            }
        };
        let cases: [(Make, Backup, Option<&str>); 8] = [
            (Box::new(|_| ()), exaggerated, Some("nothing is there: it may see another directory")),
            (Box::new(|to| std::fs::create_dir(to).unwrap()), whole, Some("no store here")),
            (Box::new(|to| std::fs::write(to, b"").unwrap()), whole, Some("Not a directory")),
            (Box::new(copy("others", false)), others, Some("it is of another store")),
            (Box::new(copy("old", false)), old, Some("commit 2 was made before")),
            (Box::new(copy("whole", false)), late, Some("2 as of commit 3 were announced")),
            (Box::new(copy("whole", true)), whole, Some("it is damaged: ")),
            (Box::new(copy("whole", false)), exaggerated, None),
        ];
        for (number, (make, said, refused)) in (0..).zip(cases) {
            let to = at(&format!("copy-{number}"));
            let server = answer_once(&at("store"), move |to| {
                make(to);
                said
            });
            let found = Store::request_backup(at("store"), &to);
            server.join().unwrap();
            match (found, refused) {
                (Ok(found), None) => {
                    assert_eq!(
                        (found.seq.get(), found.pages, found.page_size, found.bytes),
                        (2, 2, 4096, 8192)
                    );
                    assert!(found.took < Duration::MAX);
                }
                (Err(error @ Error::BackupNotConfirmed { .. }), Some(refused)) => {
                    let text = error.to_string();
                    assert!(text.contains(refused) && text.contains(&*to.to_string_lossy()), "{text}");
                }
                (found, _) => panic!("{number}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_malformed_or_silent_request_keeps_nobody_from_a_backup() {
        let dir = pagekeeper_testing::disk_dir();
        let directory = dir.path().join("store");
        // A killed process left its socket.
        std::fs::create_dir(&directory).unwrap();
        drop(UnixListener::bind(directory.join(BACKUP_SOCKET_NAME)).unwrap());
        let store = store(&directory);
        commit(&store);
        let address = directory.join(BACKUP_SOCKET_NAME);
        let silent = UnixStream::connect(&address).unwrap();
        // A request that an older version served: the pages that changed since a commit.
        let since = [&REQUEST_MAGIC[..], &[1], &[7; 16], &5_u16.to_le_bytes(), b"/copy"].concat();
        for nonsense in [
            &b"GET / HTTP/1.1\r\n\r\n and more of it"[..],
            &[0; 64],
            b"pkbackup\x07",
            &[0xff; 5000],
            &since[..],
        ] {
            let mut client = UnixStream::connect(&address).unwrap();
            let _ = client.write_all(nonsense);
            let _ = client.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            assert_eq!(answer, b"");
        }
        let relative = [&REQUEST_MAGIC[..], &[KIND_BACKUP], &[0; 16], &4_u16.to_le_bytes(), b"here"].concat();
        let mut client = UnixStream::connect(&address).unwrap();
        client.write_all(&relative).unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        assert_eq!(answer, b"");
        Store::request_backup(&directory, dir.path().join("whole")).unwrap();
        drop(silent);
    }

    #[test]
    fn a_pace_is_passed_on_with_the_request() {
        let rate = StreamPace::BytesPerSecond(64 << 20);
        for pace in [StreamPace::Auto, StreamPace::Off, StreamPace::Idle, rate] {
            let request = encode_request("/copy".as_ref(), pace).unwrap();
            assert_eq!(read_request(&mut &request[..]).unwrap(), ("/copy".into(), pace));
            let dir = pagekeeper_testing::disk_dir();
            let directory = dir.path().join("store");
            let store = store(&directory);
            let seq = commit(&store);
            let copy = dir.path().join("copy");
            assert_eq!(Store::request_backup_paced(&directory, &copy, pace).unwrap().seq, seq, "{pace:?}");
        }
        for unknown in [[0, 1], [3, 0], [4, 0]] {
            let mut request = encode_request("/copy".as_ref(), StreamPace::Auto).unwrap();
            request[9..25].copy_from_slice(&unknown.map(u64::to_le_bytes).concat());
            assert_eq!(read_request(&mut &request[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn another_user_gets_no_backup() {
        if !rustix::process::geteuid().is_root() {
            pagekeeper_testing::skip("asking as another user takes root");
            return;
        }
        let dir = pagekeeper_testing::disk_dir();
        let directory = dir.path().join("store");
        let store = store(&directory);
        commit(&store);
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        for path in [dir.path(), &directory, &directory.join(BACKUP_SOCKET_NAME)] {
            let mode: std::fs::Permissions = std::clone::Clone::clone(&open_to_all);
            std::fs::set_permissions(path, mode).unwrap();
        }
        let to = dir.path().join("whole");
        let refused = pagekeeper_testing::as_nobody(|| Store::request_backup(&directory, &to).unwrap_err());
        assert!(matches!(refused, Error::BackupRefused { .. }), "{refused}");
        assert!(!to.exists());
    }
}
