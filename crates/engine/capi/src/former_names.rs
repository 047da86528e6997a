//! The former names of functions, for programs that were compiled with them: each jumps to the
//! function of the present name. The header has the same list.

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($present:ident) => {
        concat!("jmp ", stringify!($present), "@PLT\n")
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($present:ident) => {
        concat!("b ", stringify!($present), "\n")
    };
}

macro_rules! former_names {
    ($($former:ident = $present:ident,)*) => {
        $(std::arch::global_asm!(concat!(
            ".text\n",
            ".globl ", stringify!($former), "\n",
            ".type ", stringify!($former), ", %function\n",
            stringify!($former), ":\n",
            jump!($present),
            ".size ", stringify!($former), ", . - ", stringify!($former), "\n",
        ));)*
    };
}

former_names! {
    pk_tree_create = pk_map_create,
    pk_tree_delete = pk_map_drop,
    pk_tree_put = pk_map_put,
    pk_tree_remove = pk_map_delete,
    pk_tree_get = pk_map_get,
    pk_txn_tree_get = pk_write_map_get,
    pk_txn_allocate = pk_write_allocate,
    pk_txn_allocate_run = pk_write_allocate_run,
    pk_txn_free = pk_write_free,
    pk_txn_read = pk_write_copy,
    pk_txn_write = pk_write_change,
    pk_txn_put = pk_write_page,
    pk_txn_get_root = pk_write_get_root,
    pk_txn_set_root = pk_write_set_root,
    pk_txn_commit = pk_write_commit,
    pk_txn_abort = pk_write_abort,
    pk_snapshot_root = pk_read_get_root,
    pk_snapshot_seq = pk_read_seq,
    pk_snapshot_read = pk_read_copy,
    pk_snapshot_page = pk_read_page,
    pk_snapshot_end = pk_read_end,
}
