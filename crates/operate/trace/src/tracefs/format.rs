//! Parser of a tracepoint's `format` file: its number, and the position of each field in its record
//! (`Documentation/trace/events.rst`).
//!
//! Invariants: a field ends within 8,192 bytes, the maximum of a record (`PERF_MAX_TRACE_SIZE`).
//! Lines that are not fields are skipped. A line that begins as a field and can't be parsed is an
//! error that names it.

use std::path::Path;

use crate::TraceError;

/// The maximum size of a record, in bytes.
const RECORD_BYTES_MAX: u16 = 8192;

/// One field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordField {
    pub(crate) name: String,
    /// The offset of its first byte in the record.
    pub(crate) offset: u16,
    /// Its size in bytes.
    pub(crate) size: u16,
    pub(crate) signed: bool,
}

/// The content of a `format` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordFormat {
    pub(crate) id: u64,
    pub(crate) fields: Vec<RecordField>,
}

impl RecordFormat {
    /// Parses the text of a `format` file; `path` is for errors.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self, TraceError> {
        let malformed =
            |line: &str| TraceError::Format { path: path.to_path_buf(), line: line.trim().to_owned() };
        let mut id = None;
        let mut fields = Vec::new();
        for line in text.lines() {
            if let Some(number) = line.strip_prefix("ID:") {
                id = Some(number.trim().parse().map_err(|_| malformed(line))?);
            } else if let Some(field) = line.trim_start().strip_prefix("field:") {
                fields.push(parse_field(field).ok_or_else(|| malformed(line))?);
            } else if line.starts_with("print fmt:") {
                // The print format follows, with strings of any content.
                break;
            }
        }
        let id = id.ok_or_else(|| malformed("no line \"ID:\""))?;
        Ok(Self { id, fields })
    }

    /// Returns the field of this name.
    pub(crate) fn field(&self, name: &str) -> Option<&RecordField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// Parses `unsigned long i_ino; offset:16; size:8; signed:0;`, with tabs.
fn parse_field(text: &str) -> Option<RecordField> {
    let mut parts = text.split(';').map(str::trim);
    let declaration = parts.next()?;
    let (mut offset, mut size, mut signed) = (None, None, false);
    for part in parts.filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once(':')?;
        let value: u16 = value.parse().ok()?;
        match key {
            "offset" => offset = Some(value),
            "size" => size = Some(value),
            "signed" => signed = value != 0,
            // A later kernel may have more keys.
            _ => {}
        }
    }
    let (offset, size) = (offset?, size?);
    // An array of characters has its length after its name; one of unknown length has it before.
    let name = declaration.rsplit([' ', '*']).next()?;
    let name = name.split('[').next()?;
    let within = offset.checked_add(size).is_some_and(|end| end <= RECORD_BYTES_MAX);
    (within && !name.is_empty()).then(|| RecordField { name: name.to_owned(), offset, size, signed })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = "name: mm_filemap_add_to_page_cache\nID: 600\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:dev_t s_dev;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:char bdi[32];\toffset:40;\tsize:32;\tsigned:0;\n\
        \tfield:__data_loc char[] cmd;\toffset:72;\tsize:4;\tsigned:1;\n\
        \tfield:struct page *page;\toffset:76;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"dev %d field:x\"\n\tfield: nothing of the kind\n";

    fn parse(text: &str) -> Result<RecordFormat, TraceError> {
        RecordFormat::parse(text, Path::new("format"))
    }

    #[test]
    fn fields_are_found_by_name() {
        let format = parse(PAGE).unwrap();
        assert_eq!((format.id, format.fields.len()), (600, 6));
        let field = |name: &str| format.field(name).map(|field| (field.offset, field.size, field.signed));
        assert_eq!(field("i_ino"), Some((16, 8, false)));
        assert_eq!(field("bdi"), Some((40, 32, false)));
        assert_eq!(field("cmd"), Some((72, 4, true)));
        assert_eq!(field("page"), Some((76, 8, false)));
        assert_eq!(field("order"), None);
    }

    #[test]
    fn unreadable_fields_are_named() {
        for (from, to) in [
            ("ID: 600", "ID: many"),
            ("ID: 600", "AD: 600"),
            ("offset:16;", "offset:-1;"),
            ("offset:16;", ""),
            ("offset:16;", "offset:8190;"),
            ("size:8;", "size:;"),
            ("offset:16;", "offset:65535;"),
        ] {
            let error = parse(&PAGE.replacen(from, to, 1)).unwrap_err();
            assert!(matches!(error, TraceError::Format { .. }), "{from} → {to}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_format_or_an_error(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn a_spoilt_format_is_a_format_or_an_error(
            at in 0..PAGE.len(), len in 0_usize..40, with in "[\\t\\n ;:a-z0-9\\[\\]*é-]{0,12}",
        ) {
            let mut text = PAGE.to_owned();
            text.replace_range(at..(at + len).min(PAGE.len()), &with);
            if let Ok(format) = parse(&text) {
                prop_assert!(format.fields.iter().all(|field| field.offset + field.size <= RECORD_BYTES_MAX));
            }
        }

        #[test]
        fn a_written_format_is_read_back(
            id in any::<u64>(),
            fields in prop::collection::vec(("[a-z_]{1,12}", 0_u16..4096, 0_u16..4096, any::<bool>()), 0..8),
        ) {
            let mut text = format!("name: x\nID: {id}\nformat:\n");
            for (name, offset, size, signed) in &fields {
                let signed = u8::from(*signed);
                let _ = writeln!(text, "\tfield:long {name};\toffset:{offset};\tsize:{size};\tsigned:{signed};");
            }
            let fields = fields.into_iter().map(|(name, offset, size, signed)| RecordField { name, offset, size, signed });
            prop_assert_eq!(parse(&text).unwrap(), RecordFormat { id, fields: fields.collect() });
        }
    }
}
