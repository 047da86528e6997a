//! The section `[streams]`: which programs are followed, and who may ask for more.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use pagekeeper_catalog::units::parse_pace;
use pagekeeper_catalog::{STREAMING_PROGRAMS, Spelled};
use pagekeeper_policy::stream_pace::StreamPace;
use serde::Deserialize;

use crate::targets::{Selector, named_id};

/// The handling of streaming programs: pages that such a process brings into the page cache are released
/// behind it.
#[derive(Debug, Clone)]
pub struct Streams {
    /// Whether streaming programs are followed.
    pub on: bool,
    /// Names of the processes (`/proc/PID/comm`), which may end in `*`; by default [`STREAMING_PROGRAMS`].
    pub processes: Vec<String>,
    /// Units and control groups whose processes are followed, whatever their names.
    pub groups: Vec<Selector>,
    /// The pace at which streams may use a disk.
    pub pace: StreamPace,
    /// The socket on which users ask for their own processes to be followed.
    pub socket: Option<StreamSocket>,
}

/// A socket on which users ask for their own processes to be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSocket {
    /// Its path.
    pub path: PathBuf,
    /// Its permissions, which decide who may connect. By default everybody may, since users can ask only for
    /// their own processes.
    pub mode: u32,
    /// The number of its group; `None` for the guard's own.
    pub group: Option<u32>,
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

/// The bytes of a process's name that the kernel keeps.
const NAME_MAX: usize = 15;

/// Returns a name of processes as the kernel compares it: cut to the bytes that it keeps, with an optional
/// `*` at its end. Fails with a sentence for any other glob.
pub fn stream_name(text: &str) -> Result<String, String> {
    let (name, star) = text.strip_suffix('*').map_or((text, ""), |start| (start, "*"));
    if text.is_empty() || name.contains(['*', '?', '[', ']', '{', '}', '\\']) {
        return Err(format!(
            "\"{text}\" can't be compared by the kernel, which follows streams by their names: give a whole name, or the beginning of one \
             and * at the end"
        ));
    }
    let ends = name.char_indices().map(|(at, character)| at + character.len_utf8());
    let end = ends.take_while(|end| *end <= NAME_MAX).last().unwrap_or(0);
    Ok(if end < name.len() { name[..end].to_owned() } else { format!("{name}{star}") })
}

/// One entry of `processes`.
enum StreamSelector {
    Name(String),
    Group(Selector),
}

impl FromStr for StreamSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("unit:") || text.starts_with("cgroup:") {
            text.parse().map(Self::Group)
        } else {
            stream_name(text).map(Self::Name)
        }
    }
}

/// The value of `pace`.
struct PaceText(StreamPace);

impl FromStr for PaceText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_pace(text).map(Self)
    }
}

/// The value of `socket`: a path without links that could resolve differently later.
struct SocketPath(PathBuf);

impl FromStr for SocketPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        /// The room that the kernel has (`sun_path` of unix(7)), minus the terminating zero.
        const PATH_MAX: usize = 107;
        let path = Path::new(text);
        if !path.is_absolute() || path.file_name().is_none() || text.len() > PATH_MAX {
            return Err(format!(
                "\"{text}\" is no place for a socket: give an absolute path of at most {PATH_MAX} bytes"
            ));
        }
        Ok(Self(path.to_path_buf()))
    }
}

/// The value of `socket_mode`.
struct SocketMode(u32);

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        let mode = mode.map(Self);
        mode.ok_or_else(|| format!("\"{text}\" is no mode: give permissions in octal, like 0666 or 0660"))
    }
}

/// The value of `socket_group`.
struct SocketGroup(u32);

impl FromStr for SocketGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.parse().ok().or_else(|| named_id("/etc/group", text));
        id.map(Self).ok_or_else(|| format!("/etc/group has no group \"{text}\"; a number will do"))
    }
}

/// The removed key `tick`, the time between samples of streams: they are not sampled any more.
struct RemovedTick;

impl FromStr for RemovedTick {
    type Err = String;

    fn from_str(_: &str) -> Result<Self, String> {
        Err("streams are followed by events of the kernel, not by samples: remove this key".to_owned())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamsText {
    processes: Option<Vec<Spelled<StreamSelector>>>,
    pace: Option<Spelled<PaceText>>,
    socket: Option<Spelled<SocketPath>>,
    socket_mode: Option<Spelled<SocketMode>>,
    socket_group: Option<Spelled<SocketGroup>>,
    /// Always refused.
    #[serde(rename = "tick", default)]
    _tick: Option<Spelled<RemovedTick>>,
}

impl StreamsText {
    /// Returns the settings. A section turns streams on, unless its `processes` are empty and it names no
    /// socket.
    pub(super) fn streams(self) -> Streams {
        let defaults = Streams::default();
        let is_named = self.processes.is_some();
        let (mut names, mut groups) = (Vec::new(), Vec::new());
        for selector in self.processes.into_iter().flatten() {
            match selector.0 {
                StreamSelector::Name(name) => names.push(name),
                StreamSelector::Group(group) => groups.push(group),
            }
        }
        let processes = if is_named { names } else { defaults.processes };
        let (mode, group) = (self.socket_mode, self.socket_group);
        let socket = self.socket.map(|path| StreamSocket {
            path: path.0.0,
            mode: mode.map_or(0o666, |mode| mode.0.0),
            group: group.map(|group| group.0.0),
        });
        Streams {
            on: !processes.is_empty() || !groups.is_empty() || socket.is_some(),
            processes,
            groups,
            pace: self.pace.map_or(defaults.pace, |pace| pace.0.0),
            socket,
        }
    }
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
    fn what_can_not_be_read_is_quoted() {
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
