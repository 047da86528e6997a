//! Backups on request: another process asks the one that has the store open, by a socket in the store's directory.
//!
//! A request is answered once the backup is made, by the process that has the store open, with its rights, one at a time. All numbers are
//! little endian.
//!
//! | request | bytes | answer | bytes |
//! |---|---|---|---|
//! | [`MAGIC`] | 8 | what it is: [`WHOLE`], [`SINCE`], [`FAILED`] | 1 |
//! | [`WHOLE`], or [`SINCE`] a base | 1 | eight numbers; of a failure its length | 64; 2 |
//! | the base's store and commit, or zeros | 16 | of a failure in words | its length |
//! | the length of the path, and the path | 2, its length | | |
//!
//! Invariants: who asks is the user that the process runs as, or root, by the kernel's word; a request that is not whole after [`PATIENCE`] is
//! dropped. The socket is there as long as the store is open; what a killed process left of it is replaced. Nothing here reads or writes the
//! store but as `Store::backup` does.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::Shutdown;

use crate::core::Core;
use crate::{Backup, Base, Error, Increment, threads};

/// In the store's directory.
pub(crate) const NAME: &str = "backup.sock";

const MAGIC: &[u8; 8] = b"pkbackup";
const WHOLE: u8 = 0;
const SINCE: u8 = 1;
const FAILED: u8 = 2;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a path, and of an error's words.
const MAX_TEXT: usize = 4096;
/// Bytes of a socket's path, without a zero byte behind it.
const MAX_ADDRESS: usize = 107;

/// A thread that answers requests; it ends with this.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Arc<UnixListener>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

/// What was made.
enum Made {
    Backup(Backup),
    Increment(Increment),
}

/// Starts it.
pub(crate) fn start(core: &Arc<Core>) -> Result<Server, Error> {
    let path = core.config.directory.join(NAME);
    // The store is locked: nobody else serves here.
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
    Ok(Server { listener, stopping, thread: Some(thread), path })
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the thread; it fails only where that has ended.
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
                // Who has gone, or asks for nothing that makes sense, gets no answer.
                let _ = answer(core, &client);
            }
            // Out of descriptors, perhaps.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(core: &Core, mut client: &UnixStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let user = rustix::net::sockopt::socket_peercred(client)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let (since, to) = read_request(&mut client)?;
    let made = match since {
        None => core.backup(&to).map(Made::Backup),
        Some(base) => core.backup_since(&base, &to).map(Made::Increment),
    };
    client.write_all(&encode(&made))
}

fn read_request(from: &mut impl Read) -> std::io::Result<(Option<Base>, PathBuf)> {
    let invalid = || std::io::Error::from(ErrorKind::InvalidData);
    let mut head = [0; 27];
    from.read_exact(&mut head)?;
    let len = usize::from(u16::from_le_bytes([head[25], head[26]]));
    let base = Base { store: number(&head[9..]), seq: number(&head[17..]) };
    let since = match head[8] {
        WHOLE => None,
        SINCE => Some(base),
        _ => return Err(invalid()),
    };
    if &head[..8] != MAGIC || len > MAX_TEXT {
        return Err(invalid());
    }
    let mut path = vec![0; len];
    from.read_exact(&mut path)?;
    let to = PathBuf::from(OsStr::from_bytes(&path));
    // Relative to what, nobody could say.
    if to.is_absolute() { Ok((since, to)) } else { Err(invalid()) }
}

fn request(since: Option<&Base>, to: &Path) -> Option<Vec<u8>> {
    let path = to.as_os_str().as_bytes();
    let len = u16::try_from(path.len()).ok().filter(|len| usize::from(*len) <= MAX_TEXT)?;
    let (kind, base) = since.map_or((WHOLE, Base { store: 0, seq: 0 }), |base| (SINCE, *base));
    let parts: [&[u8]; 6] =
        [MAGIC, &[kind], &base.store.to_le_bytes(), &base.seq.to_le_bytes(), &len.to_le_bytes(), path];
    Some(parts.concat())
}

fn encode(made: &Result<Made, Error>) -> Vec<u8> {
    let nanos = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let (kind, numbers) = match made {
        Ok(Made::Backup(made)) => {
            let Backup { store, page_size, seq, pages, bytes, snapshots, took } = *made;
            (WHOLE, [store, page_size as u64, 0, seq, pages, bytes, snapshots, nanos(took)])
        }
        Ok(Made::Increment(made)) => {
            let Increment { store, page_size, since, seq, pages, bytes, snapshots, took } = *made;
            (SINCE, [store, page_size as u64, since, seq, pages, bytes, snapshots, nanos(took)])
        }
        Err(error) => {
            let text = error.to_string();
            let words = &text.as_bytes()[..text.len().min(MAX_TEXT)];
            let len = u16::try_from(words.len()).unwrap_or(0);
            return [&[FAILED], &len.to_le_bytes()[..], words].concat();
        }
    };
    [&[kind][..], &numbers.map(u64::to_le_bytes).concat()].concat()
}

/// The other way round: what was made, or why not, in words.
fn read_answer(from: &mut impl Read) -> std::io::Result<Result<Made, String>> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    if kind[0] == FAILED {
        let mut len = [0; 2];
        from.read_exact(&mut len)?;
        let mut words = vec![0; usize::from(u16::from_le_bytes(len))];
        from.read_exact(&mut words)?;
        return Ok(Err(pagekeeper_kernel::text::escaped(OsStr::from_bytes(&words)).to_string()));
    }
    let mut bytes = [0; 64];
    from.read_exact(&mut bytes)?;
    let [store, page_size, since, seq, pages, bytes, snapshots, nanos] =
        std::array::from_fn(|at| number(&bytes[8 * at..]));
    let took = Duration::from_nanos(nanos);
    let page_size = usize::try_from(page_size).map_err(|_| ErrorKind::InvalidData)?;
    Ok(Ok(match kind[0] {
        WHOLE => Made::Backup(Backup { store, page_size, seq, pages, bytes, snapshots, took }),
        SINCE => Made::Increment(Increment { store, page_size, since, seq, pages, bytes, snapshots, took }),
        _ => return Err(ErrorKind::InvalidData.into()),
    }))
}

/// Has the process that has a store open make a whole backup of it.
pub(crate) fn request_backup(directory: &Path, to: &Path) -> Result<Backup, Error> {
    match ask(directory, None, to)? {
        Made::Backup(made) => Ok(made),
        Made::Increment(_) => Err(no_sense(directory)),
    }
}

/// Has it make an increment.
pub(crate) fn request_backup_since(directory: &Path, base: &Base, to: &Path) -> Result<Increment, Error> {
    match ask(directory, Some(base), to)? {
        Made::Increment(made) => Ok(made),
        Made::Backup(_) => Err(no_sense(directory)),
    }
}

fn ask(directory: &Path, since: Option<&Base>, to: &Path) -> Result<Made, Error> {
    let socket = directory.join(NAME);
    let to = std::path::absolute(to).map_err(|error| failed("getcwd", to, &error))?;
    let Some(request) = request(since, &to) else {
        return Err(failed("connect", &to, &std::io::Error::from_raw_os_error(libc::ENAMETOOLONG)));
    };
    let mut stream = match at_address(&socket, |address| UnixStream::connect(address)) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Err(Error::NoBackupsServed { path: directory.to_path_buf() });
        }
        Err(error) => return Err(failed("connect", &socket, &error)),
    };
    let asked = stream.write_all(&request).and_then(|()| read_answer(&mut stream));
    match asked {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(reason)) => Err(Error::BackupRefused { path: directory.to_path_buf(), reason }),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(no_sense(directory)),
        Err(_) => Err(Error::BackupRefused {
            path: directory.to_path_buf(),
            reason: "it ended, or did not take the request of this user: remove what it may have begun"
                .into(),
        }),
    }
}

fn no_sense(directory: &Path) -> Error {
    let reason = "its answer makes no sense: it is another version of pagekeeper".into();
    Error::BackupRefused { path: directory.to_path_buf(), reason }
}

/// Calls with an address for the path, which may be longer than those are.
fn at_address<T>(path: &Path, call: impl Fn(&Path) -> std::io::Result<T>) -> std::io::Result<T> {
    if path.as_os_str().len() <= MAX_ADDRESS {
        return call(path);
    }
    let directory = std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    call(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(NAME))
}

fn failed(call: &'static str, path: &Path, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Error::Io(pagekeeper_io::Error::Call { call, path: path.to_path_buf(), errno })
}

/// The number at the beginning of bytes that are known to be there.
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

    fn commit(store: &Store) -> u64 {
        let mut txn = store.begin().unwrap();
        let page = txn.allocate().unwrap();
        txn.page_mut(page).unwrap()[0] = 1;
        txn.commit(Durability::Sync).unwrap()
    }

    #[test]
    fn a_store_that_is_open_is_backed_up_by_who_asks() {
        let dir = pagekeeper_testing::disk_dir();
        // Longer than an address can be.
        let directory = dir.path().join("d".repeat(100)).join("store");
        std::fs::create_dir(directory.parent().unwrap()).unwrap();
        let at = |name: &str| dir.path().join(name);
        let store = store(&directory);
        let seq = commit(&store);
        let whole = Store::request_backup(&directory, &at("whole")).unwrap();
        assert_eq!((whole.seq, whole.pages, whole.page_size), (seq, 1, 4096));
        let next = commit(&store);
        let increment = Store::request_backup_since(&directory, &whole.base(), &at("increment")).unwrap();
        assert_eq!((increment.since, increment.seq, increment.pages), (seq, next, 1));
        let refused = Store::request_backup(&directory, &at("whole")).unwrap_err();
        assert!(refused.to_string().contains("there already"), "{refused}");
        store.close().unwrap();
        assert!(!directory.join(NAME).exists());
        let none = Store::request_backup(&directory, &at("more")).unwrap_err();
        assert!(matches!(none, Error::NoBackupsServed { .. }), "{none}");
        let restored = Store::options().restore(&at("whole"), &[at("increment")], &at("restored")).unwrap();
        assert_eq!(restored.seq, next);
        assert_eq!(Store::options().open(&at("whole")).unwrap().stat().seq, seq);
    }

    #[test]
    fn who_asks_for_nonsense_or_says_nothing_keeps_nobody_from_a_backup() {
        let dir = pagekeeper_testing::disk_dir();
        let directory = dir.path().join("store");
        // What a killed process left.
        std::fs::create_dir(&directory).unwrap();
        drop(UnixListener::bind(directory.join(NAME)).unwrap());
        let store = store(&directory);
        commit(&store);
        let address = directory.join(NAME);
        let silent = UnixStream::connect(&address).unwrap();
        for nonsense in
            [&b"GET / HTTP/1.1\r\n\r\n and more of it"[..], &[0; 64], b"pkbackup\x07", &[0xff; 5000]]
        {
            let mut client = UnixStream::connect(&address).unwrap();
            let _ = client.write_all(nonsense);
            let _ = client.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            assert_eq!(answer, b"");
        }
        let relative = [&MAGIC[..], &[WHOLE], &[0; 16], &4_u16.to_le_bytes(), b"here"].concat();
        let mut client = UnixStream::connect(&address).unwrap();
        client.write_all(&relative).unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        assert_eq!(answer, b"");
        Store::request_backup(&directory, &dir.path().join("whole")).unwrap();
        drop(silent);
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
        for path in [dir.path(), &directory, &directory.join(NAME)] {
            let mode: std::fs::Permissions = std::clone::Clone::clone(&open_to_all);
            std::fs::set_permissions(path, mode).unwrap();
        }
        let to = dir.path().join("whole");
        let refused = pagekeeper_testing::as_nobody(|| Store::request_backup(&directory, &to).unwrap_err());
        assert!(matches!(refused, Error::BackupRefused { .. }), "{refused}");
        assert!(!to.exists());
    }
}
