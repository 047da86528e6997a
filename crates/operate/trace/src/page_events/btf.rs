//! Reader of BTF, the kernel's description of its own types (`Documentation/bpf/btf.rst`), as far
//! as offsets of fields need it.
//!
//! Invariants: nothing is read beyond the given bytes, whatever they contain. A type that refers to
//! itself ends the search. Fails with [`BtfError`], which names the missing item.

use std::collections::HashMap;

/// An error in a description of types.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// It is not a description of types, or it is cut off.
    #[error("not a description of types that is understood")]
    Malformed,
    /// It has no such type, field or constant.
    #[error("the kernel describes no {0}")]
    Missing(String),
}

const BTF_MAGIC: u16 = 0xeb9f;
const BTF_HEADER_BYTES: usize = 24;
/// The deepest nesting of fields that is followed.
const NESTING_MAX: usize = 16;

// Kinds of types (`BTF_KIND_*`).
const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// A description of types.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The start of each type in `types`; the first has number 1.
    starts: Vec<u32>,
    /// The numbers of structs, by name.
    structs: HashMap<&'a [u8], u32>,
}

/// The three words that each type begins with.
#[derive(Clone, Copy)]
struct TypeHeader {
    name: u32,
    info: u32,
    /// The size, or the type that it stands for.
    other: u32,
}

impl TypeHeader {
    fn kind(self) -> u32 {
        self.info >> 24 & 0x1f
    }

    fn len(self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// Returns whether offsets of fields have their size in bits in the upper byte.
    fn has_bitfields(self) -> bool {
        self.info >> 31 == 1
    }

    /// Returns the number of bytes that follow the three words.
    fn rest(self) -> Option<usize> {
        Some(match self.kind() {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
            KIND_ARRAY => 12,
            KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * self.len(),
            KIND_ENUM | KIND_FUNC_PROTO => 8 * self.len(),
            2 | 7..=12 | 16 | KIND_TYPE_TAG => 0,
            _ => return None,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Returns the name at an offset among the strings.
fn name_at(strings: &[u8], at: u32) -> &[u8] {
    let rest = strings.get(at as usize..).unwrap_or_default();
    &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())]
}

impl<'a> Btf<'a> {
    /// Parses a description.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        Self::parsed(bytes).ok_or(BtfError::Malformed)
    }

    fn parsed(bytes: &'a [u8]) -> Option<Self> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let header = word(bytes, 4)? as usize;
        if magic != BTF_MAGIC || header < BTF_HEADER_BYTES {
            return None;
        }
        let section = |at: usize| {
            let start = header.checked_add(word(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, at + 4)? as usize)?)
        };
        let (types, strings) = (section(8)?, section(16)?);
        let mut btf = Self { types, strings, starts: Vec::new(), structs: HashMap::new() };
        let mut at = 0;
        while at < types.len() {
            btf.starts.push(u32::try_from(at).ok()?);
            let head = btf.head_at(at)?;
            if head.kind() == KIND_STRUCT {
                let id = u32::try_from(btf.starts.len()).ok()?;
                btf.structs.entry(name_at(strings, head.name)).or_insert(id);
            }
            at += 12 + head.rest()?;
        }
        Some(btf)
    }

    fn head_at(&self, at: usize) -> Option<TypeHeader> {
        Some(TypeHeader {
            name: word(self.types, at)?,
            info: word(self.types, at + 4)?,
            other: word(self.types, at + 8)?,
        })
    }

    /// Returns the start of a type, and its head.
    fn head(&self, id: u32) -> Option<(usize, TypeHeader)> {
        let at = *self.starts.get((id as usize).checked_sub(1)?)? as usize;
        Some((at, self.head_at(at)?))
    }

    fn name(&self, at: u32) -> &'a [u8] {
        name_at(self.strings, at)
    }

    /// Returns the offset of a field in bytes, by the names of the fields that it is nested in:
    /// `offset("page", &["mapping"])`. Anonymous structs and unions count as part of the enclosing
    /// one.
    pub(crate) fn offset(&self, of: &str, path: &[&str]) -> Result<u32, BtfError> {
        let missing = || BtfError::Missing(format!("{of}.{}", path.join(".")));
        let mut id = *self.structs.get(of.as_bytes()).ok_or_else(missing)?;
        let mut bits = 0_u32;
        for field in path {
            let (at, inner) = self.field(id, field, NESTING_MAX).ok_or_else(missing)?;
            bits = bits.checked_add(at).ok_or_else(missing)?;
            id = inner;
        }
        Ok(bits / 8)
    }

    /// Returns the type itself, behind names and qualifiers.
    fn resolved(&self, mut id: u32) -> Option<(usize, TypeHeader)> {
        for _ in 0..NESTING_MAX {
            let (at, head) = self.head(id)?;
            match head.kind() {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_TYPE_TAG => id = head.other,
                _ => return Some((at, head)),
            }
        }
        None
    }

    /// Returns a field's offset in bits, and its type.
    fn field(&self, id: u32, name: &str, depth: usize) -> Option<(u32, u32)> {
        let (at, head) = self.resolved(id)?;
        if !matches!(head.kind(), KIND_STRUCT | KIND_UNION) || depth == 0 {
            return None;
        }
        let members = (0..head.len()).map(|nth| at + 12 + 12 * nth);
        members.into_iter().find_map(|member| {
            let [its_name, its_type, offset] =
                [0, 4, 8].map(|word_at| word(self.types, member + word_at).unwrap_or_default());
            let offset = if head.has_bitfields() { offset & 0x00ff_ffff } else { offset };
            match self.name(its_name) {
                b"" => {
                    let (inner, of) = self.field(its_type, name, depth - 1)?;
                    Some((offset.checked_add(inner)?, of))
                }
                other => (other == name.as_bytes()).then_some((offset, its_type)),
            }
        })
    }

    /// Returns the number of a type that is defined by this name.
    pub(crate) fn typedef(&self, name: &str) -> Option<u32> {
        let is_it = |at: &u32| {
            let head = self.head_at(*at as usize).filter(|head| head.kind() == KIND_TYPEDEF);
            head.is_some_and(|head| self.name(head.name) == name.as_bytes())
        };
        u32::try_from(self.starts.iter().position(is_it)? + 1).ok()
    }

    /// Returns the value of a constant of an enumeration.
    pub(crate) fn constant(&self, name: &str) -> Result<u32, BtfError> {
        let of_enum = |at: u32| {
            let head = self.head_at(at as usize).filter(|head| head.kind() == KIND_ENUM)?;
            (0..head.len()).find_map(|nth| {
                let entry = at as usize + 12 + 8 * nth;
                let its_name = word(self.types, entry)?;
                (self.name(its_name) == name.as_bytes()).then(|| word(self.types, entry + 4))?
            })
        };
        self.starts.iter().find_map(|at| of_enum(*at)).ok_or_else(|| BtfError::Missing(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types as the kernel writes them: names, then the content of each.
    #[derive(Default)]
    struct Written {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Written {
        fn name(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len();
            self.strings.extend(name.bytes().chain([0]));
            u32::try_from(at).unwrap()
        }

        fn add(&mut self, name: &str, kind: u32, len: u32, other: u32, rest: &[u32]) {
            let name = self.name(name);
            for word in [name, kind << 24 | len, other].iter().chain(rest) {
                self.types.extend(word.to_ne_bytes());
            }
        }

        fn bytes(&self) -> Vec<u8> {
            let [types, strings] =
                [&self.types, &self.strings].map(|part| u32::try_from(part.len()).unwrap());
            let mut bytes = Vec::from(BTF_MAGIC.to_ne_bytes());
            bytes.extend([1, 0]);
            for word in [24, 0, types, types, strings] {
                bytes.extend(u32::to_ne_bytes(word));
            }
            [&bytes[..], &self.types, &self.strings].concat()
        }
    }

    /// `struct inode { long ino; union { int a; struct { int pad; } b; }; }`, and an enumeration.
    fn written() -> Written {
        let mut written = Written::default();
        let [ino, a, b, pad, head] = ["i_ino", "a", "b", "pad", "PG_head"].map(|name| written.name(name));
        written.add("long", KIND_INT, 0, 8, &[64]);
        written.add("", KIND_STRUCT, 1, 4, &[pad, 1, 32]);
        written.add("", KIND_UNION, 2, 4, &[a, 1, 0, b, 4, 0]);
        written.add("alias", KIND_TYPEDEF, 0, 2, &[]);
        written.add("inode", KIND_STRUCT, 2, 16, &[ino, 1, 0, 0, 3, 64]);
        written.add("flags", KIND_ENUM, 1, 4, &[head, 6]);
        written
    }

    #[test]
    fn fields_are_found_by_name_and_in_anonymous_structs() {
        let bytes = written().bytes();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("inode", &["i_ino"]), Ok(0));
        assert_eq!(btf.offset("inode", &["a"]), Ok(8));
        assert_eq!(btf.offset("inode", &["b", "pad"]), Ok(12));
        assert_eq!(btf.constant("PG_head"), Ok(6));
        assert_eq!([btf.typedef("alias"), btf.typedef("inode")], [Some(4), None]);
        let missing = btf.offset("inode", &["i_gone"]).unwrap_err();
        assert_eq!(missing.to_string(), "the kernel describes no inode.i_gone");
        assert!(btf.offset("page", &["a"]).is_err() && btf.constant("PG_tail").is_err());
    }

    #[test]
    fn truncated_and_altered_btf_is_refused_or_read_safely() {
        let bytes = written().bytes();
        for end in 0..bytes.len() {
            let _ = Btf::parse(&bytes[..end]).map(|btf| btf.offset("inode", &["b", "pad"]));
        }
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut altered = bytes.clone();
                altered[at] ^= change;
                if let Ok(btf) = Btf::parse(&altered) {
                    let _ = (btf.offset("inode", &["b", "pad"]), btf.constant("PG_head"));
                }
            }
        }
        // A type that contains itself.
        let mut loops = Written::default();
        loops.add("inode", KIND_STRUCT, 1, 8, &[0, 1, 0]);
        let bytes = loops.bytes();
        assert!(Btf::parse(&bytes).unwrap().offset("inode", &["x"]).is_err());
    }
}
