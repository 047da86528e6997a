//! Values that configurations write as text, such as patterns and sizes. Errors point to their line
//! and key.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A value written as text.
#[derive(Debug, Clone)]
pub struct TextValue<T>(pub T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for TextValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer).map(Self)
    }
}

/// Reads a value written as text. For `serde(deserialize_with)`.
pub(crate) fn deserialize_text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// Reads a list of values written as text. For `serde(deserialize_with)`.
pub(crate) fn deserialize_texts<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let all = Vec::<TextValue<T>>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|one| one.0).collect())
}
