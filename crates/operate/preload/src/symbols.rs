//! Finds the definitions of names, as dlsym(3) does, in the objects of the loader: in the loader's
//! search order, by the objects' own hash tables.
//!
//! Before 2.34, dlsym(3) is in libdl, and each process would have to map the files of libdl and
//! libpthread. That takes as long as the rest of the library's start. dlsym(3) also creates a
//! message for each name that it does not find, which allocates.
//!
//! The loader's list is found as a debugger finds it (`DT_DEBUG` of the program). In unclear cases
//! the result is [`Found::Unknown`], and dlsym(3) is asked: if there is no list, an object has no
//! GNU hash table, there are more than `OBJECTS_MAX`, or a function selects its implementation when
//! it is looked up (`STT_GNU_IFUNC`).

use core::ffi::{CStr, c_char, c_int, c_void};

/// Objects of a process that are searched.
const OBJECTS_MAX: usize = 384;

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_DEBUG: i64 = 21;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// A version that only objects that ask for it are bound to.
const VERSION_HIDDEN: u16 = 0x8000;

/// An entry of an object's dynamic section (`Elf64_Dyn`).
#[repr(C)]
#[derive(Clone, Copy)]
struct DynamicEntry {
    tag: i64,
    value: usize,
}

/// A symbol (`Elf64_Sym`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

/// The loader's entry for an object (`struct link_map`).
#[repr(C)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
    dynamic: *const DynamicEntry,
    next: *const LinkMap,
}

/// The loader's entry for all objects (`struct r_debug`).
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The address that the name stands for.
    At(*mut c_void),
    /// The name is not defined.
    Nowhere,
    /// The search cannot tell.
    Unknown,
}

/// An object that can be searched.
#[derive(Clone, Copy)]
struct LoadedObject {
    bias: usize,
    names: *const c_char,
    symbols: *const Symbol,
    /// Null if it has no versions.
    versions: *const u16,
    hash: *const u32,
}

impl LoadedObject {
    const NONE: Self = Self {
        bias: 0,
        names: core::ptr::null(),
        symbols: core::ptr::null(),
        versions: core::ptr::null(),
        hash: core::ptr::null(),
    };

    /// Creates it from the loader's entry; `None` if it cannot be searched.
    ///
    /// # Safety
    ///
    /// `map` is an entry of the loader.
    unsafe fn of(map: &LinkMap) -> Option<Self> {
        let mut object = Self { bias: map.bias, ..Self::NONE };
        // SAFETY: by this function's contract.
        for entry in unsafe { entries(map.dynamic) } {
            // The loader has relocated these addresses, except where the section cannot be written
            // (the kernel's own object).
            let address =
                if entry.value < map.bias { entry.value.wrapping_add(map.bias) } else { entry.value };
            match entry.tag {
                DT_STRTAB => object.names = core::ptr::with_exposed_provenance(address),
                DT_SYMTAB => object.symbols = core::ptr::with_exposed_provenance(address),
                DT_VERSYM => object.versions = core::ptr::with_exposed_provenance(address),
                DT_GNU_HASH => object.hash = core::ptr::with_exposed_provenance(address),
                _ => {}
            }
        }
        let has_all = !object.names.is_null() && !object.symbols.is_null() && !object.hash.is_null();
        has_all.then_some(object)
    }

    /// Returns its definition of that name, if it has one.
    ///
    /// # Safety
    ///
    /// The object is mapped.
    #[expect(
        clippy::cast_ptr_alignment,
        reason = "the words of a filter are aligned as addresses are, by the format"
    )]
    unsafe fn find(&self, name: &CStr, hash: u32) -> Option<Found> {
        const WORD_BITS: usize = usize::BITS as usize;
        // SAFETY: an object's hash table: four numbers, words of a filter, buckets, and a number
        // for each symbol from `first` on.
        unsafe {
            let [buckets, first, words, shift] = *self.hash.cast::<[u32; 4]>();
            let filter = self.hash.add(4).cast::<usize>();
            let word = *filter.add((hash as usize / WORD_BITS).checked_rem(words as usize)?);
            let seen = |hash: u32| word >> (hash as usize % WORD_BITS) & 1 == 1;
            if !seen(hash) || !seen(hash.checked_shr(shift)?) {
                return None;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chains = bucket.add(buckets as usize);
            let mut index = *bucket.add(hash.checked_rem(buckets)? as usize);
            while index >= first {
                let other = *chains.add((index - first) as usize);
                if (other ^ hash) >> 1 == 0
                    && let Some(found) = self.symbol(index, name)
                {
                    return Some(found);
                }
                if other & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        None
    }

    /// Returns the definition of the symbol at that index, if it has that name and is bound without
    /// a version.
    ///
    /// # Safety
    ///
    /// The object is mapped, and has that symbol.
    unsafe fn symbol(&self, index: u32, name: &CStr) -> Option<Found> {
        /// No type, data, function, and a function that selects its implementation.
        const SYMBOL_KINDS: [u8; 4] = [0, 1, 2, STT_GNU_IFUNC];
        const STT_GNU_IFUNC: u8 = 10;
        /// Not local.
        const BOUND_KINDS: core::ops::RangeInclusive<u8> = 1..=2;
        // SAFETY: by this function's contract.
        let (symbol, version, own) = unsafe {
            let symbol = *self.symbols.add(index as usize);
            let version = self.versions.as_ref().map(|_| *self.versions.add(index as usize));
            (symbol, version, CStr::from_ptr(self.names.add(symbol.name as usize)))
        };
        let is_there = symbol.section != 0
            && symbol.value != 0
            && SYMBOL_KINDS.contains(&(symbol.info & 0xf))
            && BOUND_KINDS.contains(&(symbol.info >> 4))
            && version.is_none_or(|version| version & VERSION_HIDDEN == 0)
            && own == name;
        let address = || core::ptr::with_exposed_provenance_mut(self.bias.wrapping_add(symbol.value));
        is_there
            .then(|| if symbol.info & 0xf == STT_GNU_IFUNC { Found::Unknown } else { Found::At(address()) })
    }
}

/// The objects of the process, in the loader's search order.
pub struct Objects {
    all: [LoadedObject; OBJECTS_MAX],
    count: usize,
    /// The number of objects up to and including the one that `next` starts from.
    own: usize,
    /// Whether these are all objects.
    are_all: bool,
}

impl Objects {
    /// No objects: all zero, so that a static one takes no space in the library's file.
    pub const NONE: Self = Self { all: [LoadedObject::NONE; OBJECTS_MAX], count: 0, own: 0, are_all: false };

    /// Fills in the current objects. `next` starts behind the object that contains `address`.
    pub fn fill(&mut self, address: usize) {
        let (mut map, mut nearest) = (first(), 0);
        (self.count, self.own, self.are_all) = (0, 0, !map.is_null());
        // SAFETY: the loader's list, which it changes when objects come and go: none does at the
        // start of a program.
        while let Some(one) = unsafe { map.as_ref() } {
            map = one.next;
            // Nobody searches the kernel's own object.
            if one.bias == kernels_object() {
                continue;
            }
            // SAFETY: an entry of the loader.
            match (unsafe { LoadedObject::of(one) }, self.all.get_mut(self.count)) {
                (Some(object), Some(free)) => {
                    *free = object;
                    self.count += 1;
                }
                _ => self.are_all = false,
            }
            if (nearest..=address).contains(&one.bias) {
                (nearest, self.own) = (one.bias, self.count);
            }
        }
    }

    /// Whether all objects are known. If not, no result is certain.
    pub fn are_all(&self) -> bool {
        self.are_all
    }

    /// Returns the definition of a name in the first object that has one.
    pub fn first(&self, name: &CStr) -> Found {
        self.find(name, 0)
    }

    /// Returns the definition of a name in the first such object behind the one with the address.
    pub fn next(&self, name: &CStr) -> Found {
        self.find(name, self.own)
    }

    fn find(&self, name: &CStr, from: usize) -> Found {
        let step = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
        let hash = name.to_bytes().iter().fold(5381, step);
        let objects = self.all.get(from..self.count).unwrap_or_default();
        // A missing object may come before others.
        if !self.are_all {
            return Found::Unknown;
        }
        // SAFETY: they are mapped: no object that the program was started with is unloaded.
        objects.iter().find_map(|object| unsafe { object.find(name, hash) }).unwrap_or(Found::Nowhere)
    }
}

/// Iterates over a dynamic section's entries.
///
/// # Safety
///
/// `section` is null, or a dynamic section that stays mapped.
unsafe fn entries<'a>(section: *const DynamicEntry) -> impl Iterator<Item = &'a DynamicEntry> {
    // SAFETY: by this function's contract, since the last entry was not reached yet.
    let entry = move |nth| unsafe { section.as_ref().map(|_| &*section.add(nth)) };
    (0..).map_while(entry).take_while(|entry| entry.tag != DT_NULL)
}

/// Returns a value that the kernel passed to the process at its start.
fn given(what: u64) -> usize {
    // SAFETY: it reads values that the kernel passed to the process.
    unsafe { libc::getauxval(what) as usize }
}

fn kernels_object() -> usize {
    const NONE: usize = usize::MAX;
    let at = given(libc::AT_SYSINFO_EHDR);
    if at == 0 { NONE } else { at }
}

/// Returns the first object in the loader's list; null if the list is not found.
fn first() -> *const LinkMap {
    let at = given(libc::AT_PHDR);
    let headers: *const libc::Elf64_Phdr = core::ptr::with_exposed_provenance(at);
    let header = |kind: u32| {
        (0..given(libc::AT_PHNUM))
            // SAFETY: the program's headers, as many as there are.
            .map(|nth| unsafe { &*headers.add(nth) })
            .find(|header| header.p_type == kind)
    };
    let (Some(own), Some(dynamic)) = (header(libc::PT_PHDR), header(libc::PT_DYNAMIC)) else {
        return core::ptr::null();
    };
    let bias = at.wrapping_sub(own.p_vaddr as usize);
    let section = core::ptr::with_exposed_provenance(bias.wrapping_add(dynamic.p_vaddr as usize));
    // SAFETY: the program's dynamic section, where the loader has put the address of its list.
    unsafe {
        let entry = entries(section).find(|entry| entry.tag == DT_DEBUG);
        let debug: *const Debug =
            entry.map_or(core::ptr::null(), |entry| core::ptr::with_exposed_provenance(entry.value));
        debug.as_ref().map_or(core::ptr::null(), |debug| debug.first)
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    /// Returns the C library's result.
    fn by_dlsym(name: &CStr) -> Found {
        // SAFETY: the name ends with a null byte.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if at.is_null() { Found::Nowhere } else { Found::At(at) }
    }

    fn objects(address: usize) -> Objects {
        let mut objects = Objects::NONE;
        objects.fill(address);
        assert!(objects.are_all());
        objects
    }

    #[test]
    fn names_are_found_where_the_c_library_finds_them() {
        let all = objects(0);
        for name in [
            c"open",
            c"open64",
            c"fcntl",
            c"fopen",
            c"posix_spawn",
            c"pthread_create",
            c"pthread_key_create",
            c"pthread_setspecific",
            c"__register_atfork",
            c"__libc_stack_end",
            c"environ",
            c"printf",
            c"__fprintf_chk",
            c"copy_file_range",
            c"memfd_create",
            c"_exit",
            c"glob",
            c"nftw",
        ] {
            assert!(matches!(all.first(name), Found::At(_)), "{name:?}");
            assert_eq!(all.first(name), by_dlsym(name), "{name:?}");
        }
        for name in [c"__asan_init", c"no_such_function", c"", c"open\x7f"] {
            assert_eq!((all.first(name), by_dlsym(name)), (Found::Nowhere, Found::Nowhere), "{name:?}");
        }
    }

    #[test]
    fn the_next_symbol_is_behind_the_asking_object() {
        let Found::At(open) = objects(0).first(c"open") else { panic!("nobody has it") };
        // The program has no definition of its own.
        let (program, library) = (objects(by_dlsym as *const () as usize), objects(open as usize));
        assert_eq!(program.next(c"open"), Found::At(open));
        assert!(library.own > program.own && library.next(c"open") == Found::Nowhere);
    }

    #[test]
    fn the_default_of_several_symbol_versions_is_found() {
        let all = objects(0);
        // Each also has an older version.
        for name in [c"posix_spawnp", c"regexec", c"pthread_cond_wait", c"glob", c"fmemopen"] {
            assert_eq!(all.first(name), by_dlsym(name), "{name:?}");
        }
        // Its implementation depends on the processor.
        assert_eq!(all.first(c"memcpy"), Found::Unknown);
    }

    #[test]
    fn without_all_objects_nothing_is_sure() {
        let some = Objects { are_all: false, ..objects(0) };
        assert_eq!((some.first(c"open"), some.next(c"none")), (Found::Unknown, Found::Unknown));
    }
}
