//! The section `[streams]`: which programs are followed, and who may ask for more.

use std::path::{Path, PathBuf};

use pagekeeper_catalog::units::parse_pace;
use pagekeeper_catalog::{STREAMING_PROGRAMS, Selector, named_id};
use pagekeeper_streams::{StreamPace, StreamSocket, stream_name};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// The handling of streaming programs: pages that such a process brings into the page cache are
/// released behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Streams {
    /// Whether streaming programs are followed.
    pub on: bool,
    /// Names of the processes (`/proc/PID/comm`), which may end in `*`; by default
    /// [`STREAMING_PROGRAMS`].
    pub processes: Vec<String>,
    /// Units and control groups whose processes are followed, whatever their names.
    pub groups: Vec<Selector>,
    /// The pace at which streams may use a disk.
    pub pace: StreamPace,
    /// The socket on which users ask for their own processes to be followed.
    pub socket: Option<StreamSocket>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            on: false,
            processes: STREAMING_PROGRAMS.map(str::to_owned).to_vec(),
            groups: Vec::new(),
            pace: StreamPace::Auto,
            socket: None,
        }
    }
}

/// The section as it is written.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StreamsText {
    /// Names, and units and control groups.
    #[serde(deserialize_with = "processes")]
    processes: (Vec<String>, Vec<Selector>),
    #[serde(deserialize_with = "pace")]
    pace: StreamPace,
    #[serde(deserialize_with = "socket_path")]
    socket: Option<PathBuf>,
    #[serde(deserialize_with = "socket_mode")]
    socket_mode: u32,
    #[serde(deserialize_with = "socket_group")]
    socket_group: Option<u32>,
    /// Always refused.
    #[serde(rename = "tick", deserialize_with = "removed_tick")]
    _tick: (),
}

impl Default for StreamsText {
    fn default() -> Self {
        let Streams { processes, groups, pace, .. } = Streams::default();
        let (socket, socket_mode, socket_group) = (None, 0o666, None);
        Self { processes: (processes, groups), pace, socket, socket_mode, socket_group, _tick: () }
    }
}

impl StreamsText {
    /// Returns the settings. A section turns streams on, unless its `processes` are empty and it
    /// names no socket.
    pub(super) fn streams(self) -> Streams {
        let (processes, groups) = self.processes;
        let (mode, group) = (self.socket_mode, self.socket_group);
        let socket = self.socket.map(|path| StreamSocket { path, mode, group });
        let on = !processes.is_empty() || !groups.is_empty() || socket.is_some();
        Streams { on, processes, groups, pace: self.pace, socket }
    }
}

/// Reads a value written as text.
fn parsed<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn processes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Vec<String>, Vec<Selector>), D::Error> {
    let (mut names, mut groups) = (Vec::new(), Vec::new());
    for text in Vec::<String>::deserialize(deserializer)? {
        if text.starts_with("unit:") || text.starts_with("cgroup:") {
            groups.push(text.parse().map_err(D::Error::custom)?);
        } else {
            names.push(stream_name(&text).map_err(D::Error::custom)?);
        }
    }
    Ok((names, groups))
}

fn pace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StreamPace, D::Error> {
    parsed(deserializer, parse_pace)
}

/// Reads a path without links that could resolve differently later.
fn socket_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    /// The room that the kernel has (`sun_path` of unix(7)), minus the terminating zero.
    const PATH_MAX: usize = 107;
    parsed(deserializer, |text| {
        let path = Path::new(text);
        if !path.is_absolute() || path.file_name().is_none() || text.len() > PATH_MAX {
            return Err(format!(
                "\"{text}\" is no place for a socket: give an absolute path of at most {PATH_MAX} bytes"
            ));
        }
        Ok(Some(path.to_path_buf()))
    })
}

fn socket_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    parsed(deserializer, |text| {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| format!("\"{text}\" is no mode: give permissions in octal, like 0666 or 0660"))
    })
}

fn socket_group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parsed(deserializer, |text| {
        let id = text.parse().ok().or_else(|| named_id("/etc/group", text));
        id.map(Some).ok_or_else(|| format!("/etc/group has no group \"{text}\"; a number will do"))
    })
}

/// Refuses the removed key `tick`, the time between samples of streams: they are not sampled any
/// more.
fn removed_tick<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    parsed(deserializer, |_| {
        Err("streams are followed by events of the kernel, not by samples: remove this key".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn streams(text: &str) -> Result<Streams, String> {
        let options = Options::parse(&format!("[streams]\n{text}\n"), Path::new("guard.toml"));
        options.map(|options| options.streams).map_err(|error| error.to_string())
    }

    #[test]
    fn units_and_groups_stand_beside_names() {
        let read = streams("processes = [\"tar\", \"unit:backup@*.service\", \"cgroup:/backup*\"]").unwrap();
        let groups: Vec<String> = read.groups.iter().map(ToString::to_string).collect();
        assert_eq!((read.on, read.processes), (true, vec!["tar".to_owned()]));
        assert_eq!(groups, ["unit:backup@*.service", "cgroup:/backup*"]);
        let read = streams("processes = [\"unit:backup.service\"]").unwrap();
        assert!(read.on && read.processes.is_empty());
    }

    #[test]
    fn the_pace_is_that_of_run() {
        assert_eq!(streams("pace = \"64M\"").unwrap().pace, StreamPace::BytesPerSecond(64 << 20));
        assert_eq!(streams("").unwrap().pace, StreamPace::Auto);
    }

    #[test]
    fn a_socket_is_there_only_where_one_is_named() {
        assert_eq!(streams("").unwrap().socket, None);
        let socket = |mode, group| StreamSocket { path: "/run/s".into(), mode, group };
        assert_eq!(streams("socket = \"/run/s\"").unwrap().socket, Some(socket(0o666, None)));
        let read =
            streams("processes = []\nsocket = \"/run/s\"\nsocket_mode = \"0660\"\nsocket_group = \"root\"");
        let read = read.unwrap();
        assert_eq!((read.on, read.socket), (true, Some(socket(0o660, Some(0)))));
    }

    #[test]
    fn unreadable_values_are_quoted() {
        let long = "x".repeat(107);
        for (text, quoted) in [
            ("processes = [\"unit:\"]", "\"unit:\" selects no"),
            ("processes = [\"cgroup:backup\"]", "its path is not absolute"),
            ("pace = \"fast\"", "\"fast\" is not a pace"),
            ("pace = \"0\"", "\"0\" is not a pace"),
            ("socket = \"streams.sock\"", "absolute path"),
            ("socket = \"/\"", "absolute path"),
            (&format!("socket = \"/{long}\""), "at most 107 bytes"),
            ("socket_mode = \"u+w\"", "in octal"),
            ("socket_mode = \"7777\"", "in octal"),
            ("socket_group = \"no such group\"", "a number will do"),
        ] {
            let error = streams(text).unwrap_err();
            assert!(error.contains(quoted), "{text}: {error}");
        }
    }
}
