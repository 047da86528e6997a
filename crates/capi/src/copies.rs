//! Copies of a store: increments of its backups, restoring them, and `pk_store_follower`, which ships its commits to a replica.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use pagekeeper_store::{Base, Follower, Shipped};

use crate::call::{call, plain};
use crate::exclusive::{Exclusive, give_up};
use crate::pointers::{Array, Text, given, put, wanted};
use crate::status::{Failure, Status};
use crate::store::Store;
use crate::txn::to_durability;

/// `pk_base`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CopyBase {
    store: u64,
    seq: u64,
}

impl From<Base> for CopyBase {
    fn from(base: Base) -> Self {
        Self { store: base.store(), seq: base.seq() }
    }
}

/// `pk_store_follower`.
pub type Shipping = Exclusive<Sender>;

pub struct Sender {
    follower: Follower<'static>,
    /// The commit that was handed out last, as it is sent.
    commit: Vec<u8>,
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_base(copy: Text, base: Option<&mut MaybeUninit<CopyBase>>) -> Status {
    call(|| {
        let base = wanted(base, "the base")?;
        base.write(pagekeeper_store::Store::options().base(copy.path()?)?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_backup_since(
    store: Option<&Store>,
    base: CopyBase,
    to: Text,
    next: Option<&mut MaybeUninit<CopyBase>>,
) -> Status {
    call(|| {
        let base = Base::new(base.store, base.seq);
        let made = given(store, "the store")?.0.backup_since(&base, to.path()?)?;
        put(next, made.base().into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_restore(
    backup: Text,
    increments: Array<Text>,
    count: usize,
    to: Text,
    seq: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let increments = increments.slice(count, "the list of increments")?;
        let increments = increments.iter().map(|path| path.path()).collect::<Result<Vec<_>, _>>()?;
        let made = pagekeeper_store::Store::options().restore(backup.path()?, &increments, to.path()?)?;
        put(seq, made.seq);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_follow(
    store: Option<&Store>,
    after: u64,
    follower: Option<&mut MaybeUninit<Box<Shipping>>>,
) -> Status {
    call(|| {
        let (store, out) = (&given(store, "the store")?.0, wanted(follower, "the follower")?);
        let follower = Arc::clone(store).follow_owned(after)?;
        out.write(Box::new(Exclusive::new(Sender { follower, commit: Vec::new() })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_follower_next(
    follower: Option<&Shipping>,
    bytes: Option<&mut MaybeUninit<*const c_void>>,
    size: Option<&mut MaybeUninit<usize>>,
    seq: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let (bytes, size) = (wanted(bytes, "the commit")?, wanted(size, "its size")?);
        let mut sender = given(follower, "the follower")?.enter()?;
        let Some(commit) = sender.follower.next()? else {
            return Err(Failure::new(Status::TimedOut, "no further commit is durable yet: ask again"));
        };
        sender.commit = commit.encode();
        bytes.write(sender.commit.as_ptr().cast());
        size.write(sender.commit.len());
        put(seq, commit.seq());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_follower_close(follower: Option<Box<Shipping>>) {
    plain((), || drop(follower.map(give_up)));
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_apply(
    replica: Option<&Store>,
    bytes: Array<u8>,
    size: usize,
    durability: u32,
    seq: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let (replica, bytes) = (given(replica, "the replica")?, bytes.slice(size, "the commit")?);
        let durability = to_durability(durability)?;
        put(seq, replica.0.apply(&Shipped::decode(bytes)?, durability)?);
        Ok(())
    })
}
