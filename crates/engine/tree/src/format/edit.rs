//! Changes of leaves and inner pages: in place if there is room, so that few bytes of the page
//! change; otherwise the page is rebuilt.
//!
//! The bytes of an entry that was removed, or moved since it grew, stay as they are until the page
//! is rebuilt.
//!
//! Invariants: a page that is valid before a change is valid after it. No change panics, whatever
//! the page contains.

use super::node::{CELL_HEAD_BYTES, EntryBody, NODE_HEAD_BYTES, Node, SLOT_BYTES};
use super::{NodeFault, set_short};

/// Offsets of fields in a head.
const COUNT_OFFSET: usize = 4;
const HEAP_OFFSET: usize = 6;
const PREFIX_OFFSET: usize = 8;

/// A new entry: its key, with or without the prefix, and its body.
pub(crate) type NewEntry<'a> = (&'a [u8], EntryBody<'a>);

/// Returns the bytes of an entry, including its slot in the directory.
pub(crate) const fn entry_len(suffix: usize, body: usize) -> usize {
    SLOT_BYTES + CELL_HEAD_BYTES + suffix + body
}

/// Builds a page from its level, the common prefix of all keys, and the entries without that
/// prefix. Free bytes are zeros then.
pub(crate) fn build<'a>(
    bytes: &mut [u8],
    level: u8,
    prefix: &[u8],
    entries: impl IntoIterator<Item = NewEntry<'a>>,
) -> Result<(), NodeFault> {
    bytes.fill(0);
    if bytes.len() < NODE_HEAD_BYTES + prefix.len() {
        return Err(NodeFault::Overlap);
    }
    bytes[..2].copy_from_slice(if level == 0 { b"tl" } else { b"ti" });
    bytes[2] = level;
    set_short(bytes, PREFIX_OFFSET, prefix.len())?;
    bytes[NODE_HEAD_BYTES..NODE_HEAD_BYTES + prefix.len()].copy_from_slice(prefix);
    let (mut count, mut heap) = (0, bytes.len());
    for (suffix, body) in entries {
        let slot = NODE_HEAD_BYTES + prefix.len() + SLOT_BYTES * count;
        let len = CELL_HEAD_BYTES + suffix.len() + body.len();
        heap = heap.checked_sub(len).filter(|heap| *heap >= slot + SLOT_BYTES).ok_or(NodeFault::Overlap)?;
        write_cell(&mut bytes[heap..heap + len], suffix, body)?;
        set_short(bytes, slot, heap)?;
        count += 1;
    }
    set_short(bytes, COUNT_OFFSET, count)?;
    set_short(bytes, HEAP_OFFSET, heap)
}

fn write_cell(to: &mut [u8], suffix: &[u8], body: EntryBody<'_>) -> Result<(), NodeFault> {
    set_short(to, 0, suffix.len())?;
    set_short(to, 2, body.tag())?;
    to[CELL_HEAD_BYTES..CELL_HEAD_BYTES + suffix.len()].copy_from_slice(suffix);
    body.write(&mut to[CELL_HEAD_BYTES + suffix.len()..]);
    Ok(())
}

/// Inserts an entry before the one at this index. Returns false, with nothing changed, if the page
/// has no room for it. The key is without the page's prefix.
pub(crate) fn insert(bytes: &mut [u8], at: usize, (suffix, body): NewEntry<'_>) -> Result<bool, NodeFault> {
    let node = Node::parse(bytes)?;
    let (count, slots_start, slots_end, heap) =
        (node.count(), node.slots_start(), node.slots_end(), node.heap());
    if at > count {
        return Err(NodeFault::Entry(at));
    }
    if node.gap() < entry_len(suffix.len(), body.len()) {
        if node.live()? + entry_len(suffix.len(), body.len()) > bytes.len() {
            return Ok(false);
        }
        compact(bytes)?;
        return insert(bytes, at, (suffix, body));
    }
    let start = heap - CELL_HEAD_BYTES - suffix.len() - body.len();
    write_cell(&mut bytes[start..heap], suffix, body)?;
    let slot = slots_start + SLOT_BYTES * at;
    bytes.copy_within(slot..slots_end, slot + SLOT_BYTES);
    set_short(bytes, slot, start)?;
    set_short(bytes, COUNT_OFFSET, count + 1)?;
    set_short(bytes, HEAP_OFFSET, start)?;
    Ok(true)
}

/// Removes an entry.
pub(crate) fn remove(bytes: &mut [u8], at: usize) -> Result<(), NodeFault> {
    let node = Node::parse(bytes)?;
    let cell = node.cell(at)?;
    let (count, slots_start, slots_end) = (node.count(), node.slots_start(), node.slots_end());
    let heap = match node.heap() {
        _ if count == 1 => bytes.len(),
        // These bytes belong to no other entry: entries do not overlap.
        heap if heap == cell.start => heap + cell.len(),
        heap => heap,
    };
    let slot = slots_start + SLOT_BYTES * at;
    bytes.copy_within(slot + SLOT_BYTES..slots_end, slot);
    bytes[slots_end - SLOT_BYTES..slots_end].fill(0);
    set_short(bytes, COUNT_OFFSET, count - 1)?;
    set_short(bytes, HEAP_OFFSET, heap)
}

/// Replaces an entry's body. Returns false, with nothing changed, if the page has no room for it.
pub(crate) fn replace(bytes: &mut [u8], at: usize, body: EntryBody<'_>) -> Result<bool, NodeFault> {
    let node = Node::parse(bytes)?;
    let cell = node.cell(at)?;
    let (start, slots_start, before) = (cell.body_start(), node.slots_start(), cell.body.len());
    if body.len() <= before {
        let head = cell.start;
        set_short(bytes, head + 2, body.tag())?;
        body.write(&mut bytes[start..start + body.len()]);
        return Ok(true);
    }
    let len = CELL_HEAD_BYTES + cell.suffix.len() + body.len();
    if node.gap() < len {
        if node.live()? + body.len() - before > bytes.len() {
            return Ok(false);
        }
        let old = bytes.to_vec();
        let node = Node::parse(&old)?;
        let cells: Vec<_> = node.cells().collect::<Result<_, _>>()?;
        let entries = cells
            .iter()
            .enumerate()
            .map(|(number, cell)| (cell.suffix, if number == at { body } else { cell.body }));
        build(bytes, node.level(), node.prefix(), entries)?;
        return Ok(true);
    }
    let (heap, suffix) = (node.heap(), cell.suffix.to_vec());
    write_cell(&mut bytes[heap - len..heap], &suffix, body)?;
    set_short(bytes, slots_start + SLOT_BYTES * at, heap - len)?;
    set_short(bytes, HEAP_OFFSET, heap - len)?;
    Ok(true)
}

/// Rebuilds a page, so that its free space is contiguous.
fn compact(bytes: &mut [u8]) -> Result<(), NodeFault> {
    let old = bytes.to_vec();
    let node = Node::parse(&old)?;
    let cells: Vec<_> = node.cells().collect::<Result<_, _>>()?;
    build(bytes, node.level(), node.prefix(), cells.iter().map(|cell| (cell.suffix, cell.body)))
}
