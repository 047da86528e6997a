//! Names of processes as the kernel compares them.

/// The bytes of a process's name that the kernel keeps.
const NAME_BYTES_MAX: usize = 15;

/// Returns a name of processes as the kernel compares it: cut to the bytes that it keeps, with an
/// optional `*` at its end. Fails with a sentence for any other glob.
pub fn stream_name(text: &str) -> Result<String, String> {
    let (name, star) = text.strip_suffix('*').map_or((text, ""), |start| (start, "*"));
    if text.is_empty() || name.contains(['*', '?', '[', ']', '{', '}', '\\']) {
        return Err(format!(
            "\"{text}\" can't be compared by the kernel, which follows streams by their names: give a whole name, or the beginning of one \
             and * at the end"
        ));
    }
    let ends = name.char_indices().map(|(at, character)| at + character.len_utf8());
    let end = ends.take_while(|end| *end <= NAME_BYTES_MAX).last().unwrap_or(0);
    Ok(if end < name.len() { name[..end].to_owned() } else { format!("{name}{star}") })
}
