//! Counts and shares.

/// Formats a count with separated thousands: "20,000".
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Formats a count with its noun: "1 file", "20,000 files".
pub fn counted(number: impl TryInto<u64>, one: &str, more: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// Formats a share in percent with this many decimals. It is shown as 0 or 100 only if it is
/// exactly that; 0 of nothing is 0.
pub fn percent(part: u64, whole: u64, decimals: u8) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    if part >= whole {
        return "100 %".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    let (places, step) = (usize::from(decimals), 0.1_f64.powi(i32::from(decimals)));
    match share {
        _ if share < step / 2.0 => format!("<{step:.places$} %"),
        _ if share >= 100.0 - step / 2.0 => format!(">{:.places$} %", 100.0 - step),
        _ => format!("{share:.places$} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_thousands_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(
            (counted(1_usize, "file", "files"), counted(20_000_u64, "file", "files")),
            ("1 file".to_owned(), "20,000 files".to_owned())
        );
    }

    #[test]
    fn a_share_is_never_rounded_to_none_or_all() {
        for (part, whole, decimals, text) in [
            (0, 5, 0, "0 %"),
            (1, 0, 0, "0 %"),
            (1, 1000, 0, "<1 %"),
            (999, 1000, 0, ">99 %"),
            (1, 2, 0, "50 %"),
            (5, 5, 0, "100 %"),
            (1, 1_000_000, 1, "<0.1 %"),
            (1, 3, 1, "33.3 %"),
            (999_999, 1_000_000, 1, ">99.9 %"),
            (12, 10, 1, "100 %"),
        ] {
            assert_eq!(percent(part, whole, decimals), text);
        }
    }
}
