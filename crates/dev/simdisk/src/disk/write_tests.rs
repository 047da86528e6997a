//! Writes, syncs and their faults: each run repeats exactly.

use std::sync::mpsc;

use super::*;
use crate::faults::WriteFault;
use pagekeeper_io::{AlignedBuf, ResidentBytes, WriteMode};

const PAGE: u64 = 4096;

fn new_file(disk: &SimDisk, access: Access) -> Arc<dyn IoFile> {
    disk.open_writable("/file".as_ref(), access, Create::New).unwrap()
}

fn filled(len: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    buf.fill(byte);
    buf
}

/// Returns the first byte of each page.
fn pages(disk: &SimDisk, access: Access) -> Vec<u8> {
    let file = disk.open("/file".as_ref(), access).unwrap();
    let mut bytes =
        AlignedBuf::new(usize::try_from(file.stat().unwrap().size).unwrap().next_multiple_of(512));
    let len = file.read_at(0, &mut bytes).unwrap();
    bytes[..len].iter().step_by(4096).copied().collect()
}

fn resident(file: &dyn IoFile) -> (u64, u64) {
    let ResidentBytes { resident, unwritten } = file.residency(0..u64::MAX).unwrap().unwrap();
    (resident / PAGE, unwritten / PAGE)
}

#[test]
fn a_failed_sync_is_reported_once_and_loses_its_writes() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    disk.sync_dir("/".as_ref()).unwrap();
    file.write_at(0, &[1; 12_288], WriteMode::Plain).unwrap();
    file.sync_data().unwrap();
    file.write_at(PAGE, &[2; 4096], WriteMode::Plain).unwrap();
    file.write_at(3 * PAGE, &[2; 4096], WriteMode::Plain).unwrap();
    disk.inject("/file", 0..1, WriteFault::SYNC_EIO, Times::Once).unwrap();
    assert_eq!(file.sync_data(), Err(Error::Sync { path: "/file".into(), errno: libc::EIO }));
    // The cache shows the data as clean; the device has never received it, even after another sync
    // succeeds.
    file.sync_data().unwrap();
    assert_eq!(resident(&*file), (4, 0));
    assert_eq!(pages(&disk, Access::Buffered), [1, 2, 1, 2]);
    assert_eq!(pages(&disk, Access::Direct), [1, 1, 1, 0]);
    assert_eq!(pages(&disk.after_kill(), Access::Buffered), [1, 2, 1, 2]);
    assert_eq!(pages(&disk.after_power_cut(Persistence::All, 0), Access::Buffered), [1, 1, 1, 0]);
    // A page that is written again is dirty as a whole, and reaches the device with the next sync.
    file.write_at(PAGE + 10, &[3], WriteMode::Plain).unwrap();
    file.sync_data().unwrap();
    assert_eq!(pages(&disk, Access::Direct), [1, 2, 1, 0]);
    // A page that was dropped is read from the device.
    file.release(0..u64::MAX).unwrap();
    assert_eq!(pages(&disk, Access::Buffered), [1, 2, 1, 0]);
}

#[test]
fn a_failed_sync_of_direct_writes_loses_them_at_once() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Direct);
    file.write_at(0, &filled(8192, 1), WriteMode::Durable).unwrap();
    file.write_at(0, &filled(4096, 2), WriteMode::Plain).unwrap();
    disk.inject_all(WriteFault::SYNC_EIO, Times::Once);
    assert!(file.sync_data().is_err());
    assert_eq!(pages(&disk, Access::Buffered), [1, 1]);
}

#[test]
fn a_failed_sync_of_a_directory_loses_its_names() {
    let disk = SimDisk::new();
    new_file(&disk, Access::Buffered);
    disk.inject("/", 0..1, WriteFault::SYNC_EIO, Times::Once).unwrap();
    assert_eq!(disk.sync_dir("/".as_ref()), Err(Error::Sync { path: "/".into(), errno: libc::EIO }));
    disk.sync_dir("/".as_ref()).unwrap();
    assert_eq!(disk.list("/".as_ref()).unwrap(), ["file"]);
    assert!(disk.after_power_cut(Persistence::All, 0).list("/".as_ref()).unwrap().is_empty());
}

#[test]
fn writes_fail_as_planned_and_continue_where_possible() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    let no_space = |range| Err(Error::Write { path: "/file".into(), range, errno: libc::ENOSPC });
    disk.inject_all(WriteFault::NO_SPACE, Times::Nth(2));
    assert_eq!(file.write_at(0, &[1; 100], WriteMode::Plain), Ok(()));
    assert_eq!(file.write_at(100, &[2; 100], WriteMode::Plain), Ok(()));
    assert_eq!(file.write_at(200, &[3; 100], WriteMode::Plain), no_space(200..300));
    assert_eq!((file.stat().unwrap().size, disk.ops()), (200, 4));
    assert_eq!(file.write_at(200, &[3; 100], WriteMode::Plain), Ok(()));
    // A full disk accepts a part first.
    disk.inject("/file", 0..u64::MAX, WriteFault::Short(30), Times::Once).unwrap();
    disk.inject("/file", 0..u64::MAX, WriteFault::NO_SPACE, Times::Once).unwrap();
    assert_eq!(file.write_at(300, &[4; 100], WriteMode::Plain), no_space(300..400));
    assert_eq!(file.stat().unwrap().size, 330);
    for fault in [WriteFault::Short(7), WriteFault::INTERRUPTED, WriteFault::Error(libc::EAGAIN)] {
        disk.inject("/file", 0..u64::MAX, fault, Times::Once).unwrap();
        assert_eq!(file.write_at(0, &[5; 1000], WriteMode::Plain), Ok(()));
    }
    disk.inject("/file", 0..u64::MAX, WriteFault::Allocate(libc::ENOSPC), Times::Always).unwrap();
    assert_eq!(file.allocate(0..1 << 20).unwrap_err().errno(), Some(libc::ENOSPC));
    disk.heal("/file").unwrap();
    file.allocate(0..1 << 20).unwrap();
    assert_eq!(file.stat().unwrap().size, 1 << 20);
    assert_eq!(disk.stats().faults, 7);
}

#[test]
fn faults_of_writes_repeat_from_their_seed() {
    let run = |seed| {
        let faults = RandomWriteFaults {
            short_per_mille: 200,
            interrupted_per_mille: 100,
            failing_per_mille: 30,
            no_space_per_mille: 30,
            failing_sync_per_mille: 100,
            ..RandomWriteFaults::default()
        };
        let disk = SimDisk::builder().random_write_faults(faults).seed(seed).build();
        let files = [Access::Buffered, Access::Direct].map(|access| {
            let path = format!("/{access:?}");
            disk.open_writable(path.as_ref(), access, Create::New).unwrap()
        });
        let mut results = Vec::new();
        for turn in 0..200 {
            for file in &files {
                results.push(file.write_at(turn * 8192, &filled(8192, 1), WriteMode::Plain));
                results.push(file.sync_data());
                results.push(file.allocate(0..turn));
            }
        }
        (results, disk.stats())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    let (results, _) = run(5);
    let count = |errno| {
        results
            .iter()
            .filter(|result| result.as_ref().is_err_and(|error| error.errno() == Some(errno)))
            .count()
    };
    assert!(count(libc::EIO) > 20 && count(libc::ENOSPC) > 20);
    assert_eq!(count(libc::EINTR) + count(libc::EAGAIN), 0, "these are gone on with");
    assert!(results.iter().filter(|result| result.is_ok()).count() > 600);
}

#[test]
fn a_durable_write_is_durable_and_leaves_the_others_open() {
    for access in [Access::Buffered, Access::Direct] {
        let disk = SimDisk::new();
        let file = new_file(&disk, access);
        disk.sync_dir("/".as_ref()).unwrap();
        file.write_at(0, &filled(8192, 1), WriteMode::Plain).unwrap();
        file.write_at(PAGE, &filled(8192, 2), WriteMode::Durable).unwrap();
        for (persistence, first) in [(Persistence::None, 0), (Persistence::All, 1)] {
            let found = disk.after_power_cut(persistence, 3);
            assert_eq!(pages(&found, Access::Buffered), [first, 2, 2], "{access:?} {persistence:?}");
        }
        disk.inject_all(WriteFault::SYNC_EIO, Times::Once);
        let failed = Error::Write { path: "/file".into(), range: 0..512, errno: libc::EIO };
        assert_eq!(file.write_at(0, &filled(512, 3), WriteMode::Durable), Err(failed));
    }
}

#[test]
fn pages_stay_until_they_are_clean_and_released() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    file.write_at(0, &filled(10 * 4096 + 1, 1), WriteMode::Plain).unwrap();
    assert_eq!(resident(&*file), (11, 11));
    file.start_writeback(0..u64::MAX).unwrap();
    file.release(0..u64::MAX).unwrap();
    assert_eq!(resident(&*file), (11, 11), "it was not waited for");
    file.wait_writeback(0..4 * PAGE).unwrap();
    file.release(100..8 * PAGE).unwrap();
    // The first page is not entirely in the range.
    assert_eq!(resident(&*file), (8, 7));
    file.sync_data().unwrap();
    file.release(0..10 * PAGE).unwrap();
    assert_eq!(resident(&*file), (1, 0), "the last page lies behind the range");
    file.release(0..10 * PAGE + 1).unwrap();
    assert_eq!(resident(&*file), (0, 0));
    // Buffered reads add pages, direct reads do not, and direct writes remove them.
    pages(&disk, Access::Direct);
    assert_eq!(resident(&*file), (0, 0));
    file.read_at(PAGE, &mut [0; 8192]).unwrap();
    assert_eq!(resident(&*file), (2, 0));
    let direct = disk.open_writable("/file".as_ref(), Access::Direct, Create::Never).unwrap();
    direct.write_at(PAGE, &filled(4096, 2), WriteMode::Plain).unwrap();
    assert_eq!(resident(&*file), (1, 0));
    // Pages of uncached writes do not stay, unless they were resident before.
    file.write_at(2 * PAGE, &[3; 8192], WriteMode::Uncached).unwrap();
    assert_eq!(resident(&*file), (1, 1));
    file.set_len(PAGE).unwrap();
    assert_eq!(resident(&*file), (0, 0));
}

#[test]
fn written_back_is_not_durable() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    disk.sync_dir("/".as_ref()).unwrap();
    file.write_at(0, &[1; 4096], WriteMode::Plain).unwrap();
    file.wait_writeback(0..PAGE).unwrap();
    assert!(pages(&disk.after_power_cut(Persistence::None, 0), Access::Buffered).is_empty());
    file.sync_all().unwrap();
    assert_eq!(pages(&disk.after_power_cut(Persistence::None, 0), Access::Buffered), [1]);
}

#[test]
fn a_file_that_was_synced_without_its_directory_has_no_name() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    file.write_at(0, b"content", WriteMode::Plain).unwrap();
    file.sync_all().unwrap();
    assert!(disk.after_power_cut(Persistence::None, 0).list("/".as_ref()).unwrap().is_empty());
    disk.sync_dir("/".as_ref()).unwrap();
    let found = disk.after_power_cut(Persistence::None, 0);
    assert_eq!(found.open("/file".as_ref(), Access::Buffered).unwrap().stat().unwrap().size, 7);
}

#[test]
fn torn_writes_are_torn_at_sectors() {
    let disk = SimDisk::new();
    disk.create("/file", vec![1; 1 << 16]).unwrap();
    let file = disk.open_writable("/file".as_ref(), Access::Buffered, Create::Never).unwrap();
    file.write_at(0, &filled(1 << 16, 2), WriteMode::Plain).unwrap();
    let (mut torn, mut garbled) = (0, 0);
    for seed in 0..100 {
        for (persistence, unit) in [(Persistence::Random, 4096), (Persistence::Torn, 512)] {
            let found = disk.after_power_cut(persistence, seed);
            let mut bytes = vec![0; 1 << 16];
            found.open("/file".as_ref(), Access::Buffered).unwrap().read_at(0, &mut bytes).unwrap();
            assert!(
                bytes.chunks(unit).all(|unit| unit == vec![unit[0]; unit.len()] && matches!(unit[0], 1 | 2))
            );
            torn += u32::from(bytes.contains(&1) && bytes.contains(&2));
        }
        let found = disk.after_power_cut(Persistence::TornGarbage, seed);
        let mut bytes = vec![0; 1 << 16];
        found.open("/file".as_ref(), Access::Buffered).unwrap().read_at(0, &mut bytes).unwrap();
        garbled += u32::from(bytes.iter().any(|byte| !matches!(byte, 1 | 2)));
    }
    assert!(torn > 80 && garbled > 20, "{torn} torn, {garbled} garbled");
}

#[test]
fn everything_fails_after_a_power_cut() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    disk.sync_dir("/".as_ref()).unwrap();
    let lock = disk.lock("/lock".as_ref()).unwrap();
    disk.cut_power_at(disk.ops() + 1);
    file.write_at(0, &[1; 4096], WriteMode::Plain).unwrap();
    assert_eq!(file.write_at(PAGE, &[2; 4096], WriteMode::Plain).unwrap_err().errno(), Some(libc::EIO));
    let ops = disk.ops();
    let path = Path::new("/file");
    let all = [
        file.sync_data(),
        file.write_at(0, &[3; 4096], WriteMode::Plain),
        file.read_at(0, &mut [0; 10]).map(|_| ()),
        file.stat().map(|_| ()),
        file.set_len(1),
        file.allocate(0..10),
        file.release(0..10),
        file.residency(0..10).map(|_| ()),
        file.start_writeback(0..10),
        file.wait_writeback(0..10),
        disk.open(path, Access::Buffered).map(|_| ()),
        disk.open_writable("/new".as_ref(), Access::Buffered, Create::New).map(|_| ()),
        Io::remove(&disk, path),
        disk.rename(path, "/new".as_ref()),
        disk.create_dir("/dir".as_ref()),
        disk.list("/".as_ref()).map(|_| ()),
        disk.sync_dir("/".as_ref()),
        disk.lock("/other".as_ref()).map(|_| ()),
    ];
    for (call, result) in all.into_iter().enumerate() {
        assert_eq!(result.unwrap_err().errno(), Some(libc::EIO), "call {call}");
    }
    assert_eq!(disk.ops(), ops);
    drop(lock);
    // The interrupted operation may have been done, later ones not.
    assert_eq!(pages(&disk.after_power_cut(Persistence::All, 0), Access::Buffered), [1, 2]);
    assert!(pages(&disk.after_power_cut(Persistence::None, 0), Access::Buffered).is_empty());
}

#[test]
fn writes_take_their_time_and_syncs_too() {
    let latency = Duration::from_micros(100);
    let disk = SimDisk::builder().latency(latency).width(4).build();
    let file = new_file(&disk, Access::Direct);
    let (sender, ended) = mpsc::channel();
    let writes = (0..8).map(|n| {
        let sender = sender.clone();
        let done = Box::new(move |buf: AlignedBuf, result| sender.send((buf.len(), result)).unwrap());
        OwnedWrite {
            file: Arc::clone(&file),
            offset: n * PAGE,
            buf: filled(4096, 1),
            mode: WriteMode::Plain,
            done,
        }
    });
    disk.submit_writes(writes.collect());
    drop(sender);
    assert_eq!(ended.iter().collect::<Vec<_>>(), vec![(4096, Ok(())); 8]);
    assert_eq!((disk.now(), disk.stats().peak_width), (2 * latency, 4));
    file.sync_data().unwrap();
    file.write_at(0, &filled(4096, 2), WriteMode::Plain).unwrap();
    assert_eq!(disk.now(), 4 * latency);
    let stats = disk.stats();
    assert_eq!((stats.writes, stats.syncs, stats.written), (9, 1, 9 * PAGE));
}

#[test]
fn a_hold_stops_writes_and_syncs() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Buffered);
    let hold = disk.hold("/file", 0..100).unwrap();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| file.write_at(50, &[1; 100], WriteMode::Plain));
        let sync = scope.spawn(|| file.sync_data());
        hold.wait_for(2);
        file.write_at(200, &[2; 100], WriteMode::Plain).unwrap();
        assert_eq!(disk.stats().written, 100);
        drop(hold);
        assert_eq!((write.join().unwrap(), sync.join().unwrap()), (Ok(()), Ok(())));
    });
    assert_eq!(disk.stats().in_flight, 0);
}

#[test]
fn names_are_distinguished_and_files_live_while_they_are_open() {
    let disk = SimDisk::new();
    let (dir, path) = (Path::new("/dir"), Path::new("/dir/file"));
    let errno = |result: Result<(), Error>| result.unwrap_err().errno().unwrap();
    let open = |path, create| disk.open_writable(path, Access::Buffered, create).map(|_| ());
    assert_eq!(errno(open(path, Create::New)), libc::ENOENT);
    disk.create_dir(dir).unwrap();
    assert_eq!(errno(disk.create_dir(dir)), libc::EEXIST);
    assert_eq!(errno(open(path, Create::Never)), libc::ENOENT);
    open(path, Create::New).unwrap();
    assert_eq!(errno(open(path, Create::New)), libc::EEXIST);
    assert!(matches!(
        open(dir, Create::Never),
        Err(Error::NotARegularFile { kind: FileKind::Directory, .. })
    ));
    assert_eq!(errno(Io::remove(&disk, dir)), libc::EISDIR);
    assert_eq!(errno(disk.list(path).map(|_| ())), libc::ENOTDIR);
    assert_eq!([dir, path].map(|path| errno(disk.remove_dir(path))), [libc::ENOTEMPTY, libc::ENOTDIR]);
    assert_eq!(errno(disk.remove_dir("/none".as_ref())), libc::ENOENT);
    assert_eq!(errno(disk.sync_dir("/none".as_ref())), libc::ENOENT);
    assert_eq!(errno(disk.rename("/none".as_ref(), path)), libc::ENOENT);
    assert_eq!(errno(disk.rename(path, "/none/file".as_ref())), libc::ENOENT);
    let ops = disk.ops();
    assert_eq!(ops, 2, "a refused call is not an operation");

    let file = disk.open_writable(path, Access::Buffered, Create::Never).unwrap();
    disk.rename(path, "/other".as_ref()).unwrap();
    assert_eq!(disk.list("/".as_ref()).unwrap(), ["dir", "other"]);
    assert!(disk.list(dir).unwrap().is_empty());
    disk.remove_dir(dir).unwrap();
    assert_eq!(disk.list("/".as_ref()).unwrap(), ["other"]);
    Io::remove(&disk, "/other".as_ref()).unwrap();
    file.write_at(0, b"still", WriteMode::Plain).unwrap();
    assert_eq!(file.stat().unwrap().size, 5);
    let reader =
        disk.create("/old", *b"old").and_then(|()| disk.open("/old".as_ref(), Access::Buffered)).unwrap();
    assert_eq!(reader.write_at(0, b"new", WriteMode::Plain).unwrap_err().errno(), Some(libc::EBADF));
}

#[test]
fn a_lock_is_the_only_one_until_it_goes() {
    let disk = SimDisk::new();
    let path = Path::new("/lock");
    let held = disk.lock(path).unwrap();
    assert_eq!(disk.lock(path).err(), Some(Error::Locked { path: path.into() }));
    assert!(disk.lock("/another".as_ref()).is_ok());
    assert!(disk.after_kill().lock(path).is_ok());
    drop(held);
    assert_eq!(disk.lock(path).unwrap().path(), path);
}

#[test]
fn readers_share_a_lock_and_make_no_file() {
    let disk = SimDisk::new();
    let path = Path::new("/lock");
    assert!(disk.lock_shared(path).unwrap().is_none());
    assert_eq!(disk.ops(), 0);
    let held = disk.lock(path).unwrap();
    assert_eq!(disk.lock_shared(path).err(), Some(Error::Locked { path: path.into() }));
    drop(held);
    let readers = [disk.lock_shared(path).unwrap().unwrap(), disk.lock_shared(path).unwrap().unwrap()];
    let [first, second] = readers;
    drop(first);
    assert_eq!(disk.lock(path).err(), Some(Error::Locked { path: path.into() }));
    drop(second);
    assert!(disk.lock(path).is_ok());
}

#[test]
fn direct_writes_must_be_aligned() {
    let disk = SimDisk::new();
    let file = new_file(&disk, Access::Direct);
    let memory = filled(4096, 1);
    for (offset, bytes) in [(100, &memory[..]), (0, &memory[1..513]), (0, &memory[..100])] {
        let range = offset..offset + bytes.len() as u64;
        let unaligned = Err(Error::Unaligned { path: "/file".into(), range });
        assert_eq!(file.write_at(offset, bytes, WriteMode::Plain), unaligned);
    }
    assert_eq!((file.write_at(512, &memory[512..1024], WriteMode::Plain), disk.ops()), (Ok(()), 2));
}
