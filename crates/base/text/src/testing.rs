//! Hostile names for the tests of this crate.

use proptest::prelude::*;

/// Returns byte strings with many special cases: control characters, quotes, shell syntax, unusual
/// Unicode.
pub(crate) fn nasty() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        (0_u8..0x20).prop_map(|byte| vec![byte]),
        prop::sample::select(vec![
            "'", "\"", "\\", "$(id>x)", "`id`", "!!", " ", "*", "~", "#", "a", "\\'", "x1b"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        prop::sample::select(vec!['\u{85}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{200b}', 'é'])
            .prop_map(|c| c.to_string().into_bytes()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

pub(crate) fn is_safe(text: &str) -> bool {
    !text.chars().any(|c| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
    })
}
