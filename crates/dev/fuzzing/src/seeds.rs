//! Valid inputs for parsers of this project's own formats, of names and of settings: mutations
//! begin here.

use pagekeeper_catalog::BUILT_IN_PROFILES;

/// Returns a file of version 1, and the same without header and checksum, which the target adds
/// itself.
pub(crate) fn snapshot() -> Vec<Vec<u8>> {
    let golden = include_bytes!("../../../operate/observe/src/saved_pages/testdata/v1.snapshot");
    vec![golden.to_vec(), golden[10..golden.len() - 4].to_vec()]
}

/// Returns the built-in profiles.
pub(crate) fn profile() -> Vec<Vec<u8>> {
    BUILT_IN_PROFILES.iter().map(|(_, text)| text.as_bytes().to_vec()).collect()
}

/// Returns patterns, each with a name that matches.
pub(crate) fn pattern() -> Vec<Vec<u8>> {
    owned(&[
        b"*.{n}\n/d/binlog.000012",
        b"pg_wal/{x}\n/d/pg_wal/0000000100000000000000FF",
        b"#innodb_redo/#ib_redo{n}_tmp\n/d/#innodb_redo/#ib_redo7_tmp",
    ])
}

/// Returns two slots of a superblock.
pub(crate) fn superblock() -> Vec<Vec<u8>> {
    let slot =
        b"\x07\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
        \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x2c\x01\
        \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x2b\x01\x00\x00\x00\x00\x00\x00\x02\x00\
        \x00\x00\x00\x00\x00\x00\x00\x00";
    vec![[slot.as_slice(), slot].concat()]
}

/// Returns one record (the store's state, then an image, a diff and a free page), and the same in
/// two parts, of the next commit.
pub(crate) fn entry() -> Vec<Vec<u8>> {
    owned(&[
        b"\x00\x2c\x09\x01\x01\xac\x02\x00user\x0a\x11\x07\x01\x02\x03\x04\xc8\x01ab\x0f\x32\xab\x02\x01\
        \x02\x03\x04\x0a\x01\x01x\x20\x02yz\x06\x23\x00\x01\x02\x03\x04",
        b"\x11\x0a\x09\x01\x01\xac\x02\x00user\x05\x22\x0a\x11\x07\x01\x02\x03\x04\xc8\x01ab\x0f\x32\xab\
        \x02\x01\x02\x03\x04\x0a\x01\x01x\x20\x02yz\x06\x23\x00\x01\x02\x03\x04",
    ])
}

/// Returns the expected page number and store id, then the page, a trunk of the free list.
pub(crate) fn page() -> Vec<Vec<u8>> {
    owned(&[
        b"\x07\x00\x00\x00\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\x03\x00\x00\x00\x00\x03\x00\x00\
        \x00\x07\x00\x00\x00\x00\x00\x00\x00\x2c\x01\x00\x00\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\
        \x01\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\
        \x00\x2c\x01\x00\x00\x00\x00\x00\x00",
    ])
}

/// Returns two consecutive records, an epoch, raw bytes, and a record at the next block.
pub(crate) fn redo() -> Vec<Vec<u8>> {
    owned(&[b"\x05\0\0\x02recordxx\x05\0\0\x01more\x05\0\x01\0\x01\x09\0\x01rest\x06\0\0\x01last"])
}

/// Returns one example of each syntax.
pub(crate) fn settings() -> Vec<Vec<u8>> {
    owned(&[
        b"[mysqld]\nsync-binlog = \"1\" # each\n!includedir /etc/mysql/conf.d\nskip-x\n",
        b"max_wal_size = '1GB' # more\ninclude_dir 'conf.d'\nwal_recycle off\n",
        b"[Version]\n  rocksdb_version=7.8.3\n[DBOptions]\n  bytes_per_sync=0\n[CFOptions \"default\"]\n  a={b=1;}\n",
        b"[rocksdb]\nbytes-per-sync = \"1MB\"\n[rocksdb.defaultcf]\nnum-levels = 7\n",
    ])
}

/// Returns the second write of a block, as of commit 300, with one page in doubt, and three
/// entries.
pub(crate) fn page_map() -> Vec<Vec<u8>> {
    owned(&[b"\x02\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \x01\0\0\0\x04\x03\x02\x01\0\0\0\0"])
}

/// Returns changes, and a leaf, an inner page and an extent's head, each as small as possible.
pub(crate) fn tree_page() -> Vec<Vec<u8>> {
    owned(&[
        b"\x03\x10\x01\x09x\x11\x00\x00\x00\x12\x00\x20ytl\0\0\x02\0\x20\0\x02\0\0\0ab\x20\0\x27\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x02\0kvw\x01\0\xff\xffl\x40\0\0\0\x07\0\0\0",
        b"\x02\x00\x01\x04x\x01\x01\x00\x00ti\x01\0\x02\0\x14\0\0\0\0\0\x14\0\x1c\0\0\0\0\0\0\0\x04\0\
        \x03\0\0\0\x01\0\x04\0m\x04\0\0\0",
        b"\0tv\0\0\x02\0\0\0\xff\xff\xff\xff\0\0\0\0and so on",
    ])
}

/// Returns two ranges.
pub(crate) fn warm() -> Vec<Vec<u8>> {
    owned(&[b"\0\x01\x02\x80\x01"])
}

fn owned(seeds: &[&[u8]]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.to_vec()).collect()
}
