//! Decides by which means the rules reach a command. It is pure, and the only place with that
//! decision.
//!
//! Kernel events come first, since they need nothing inside the program. The library is for its own
//! rules (bulk pacing, logs at the sync, mixed I/O), and for streams if events are refused.

/// The kind of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// It streams, with all its descendants.
    Stream,
    /// It only starts others: a shell, or a prefix of one.
    Script,
    /// A server: a profile, `--as bulk` or `--as logs` describes its I/O.
    Server,
    /// It makes a process elsewhere start a command.
    Elsewhere,
}

/// The processes of a command that are followed by events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FollowScope {
    /// All.
    All,
    /// Those with the name of a stream, and their descendants.
    ByName,
}

/// The means by which the rules reach a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandMeans {
    /// A process beside it follows these of its processes by events.
    Events(FollowScope),
    /// The library is loaded into it and its descendants.
    Library,
    /// None.
    Nothing,
}

impl ProgramKind {
    /// Returns which of its processes are followed if that is possible.
    pub(crate) const fn followed(self) -> Option<FollowScope> {
        match self {
            Self::Stream => Some(FollowScope::All),
            Self::Script => Some(FollowScope::ByName),
            Self::Server | Self::Elsewhere => None,
        }
    }
}

/// Chooses the means for a command. `has_events`: this caller gets events on this kernel.
/// `takes_library`: the library can be loaded into the program.
pub(crate) const fn choose(kind: ProgramKind, has_events: bool, takes_library: bool) -> CommandMeans {
    match (kind, kind.followed()) {
        (_, Some(followed)) if has_events => CommandMeans::Events(followed),
        (ProgramKind::Elsewhere, _) => CommandMeans::Nothing,
        _ if takes_library => CommandMeans::Library,
        _ => CommandMeans::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    const KINDS: [(ProgramKind, &str); 4] = [
        (ProgramKind::Stream, "a stream: by its name, typed behind `run --`, or by `--as stream`"),
        (ProgramKind::Script, "a shell, or a shell behind `sudo` and its like"),
        (ProgramKind::Server, "a server: by a profile or `--profile`, `--as bulk`, `--as logs`, `java`"),
        (
            ProgramKind::Elsewhere,
            "a client that has another process start a command: `docker exec` and its like",
        ),
    ];

    fn cell(means: CommandMeans) -> &'static str {
        match means {
            CommandMeans::Events(FollowScope::All) => "events, of all its processes",
            CommandMeans::Events(FollowScope::ByName) => "events, of the streams that it starts",
            CommandMeans::Library => "library",
            CommandMeans::Nothing => "none, which is said",
        }
    }

    /// Returns the table in the book.
    fn table() -> String {
        let mut table = String::from(
            "| the command | with events | with events, and no library can be loaded | without events | without events, and no library can be loaded |\n\
             |---|---|---|---|---|\n",
        );
        for (kind, name) in KINDS {
            let cells = [(true, true), (true, false), (false, true), (false, false)];
            let cells =
                cells.map(|(has_events, takes_library)| cell(choose(kind, has_events, takes_library)));
            writeln!(table, "| {name} | {} |", cells.join(" | ")).unwrap();
        }
        table
    }

    #[test]
    fn the_book_has_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/run.md");
        let table = table();
        assert!(
            std::fs::read_to_string(page).unwrap().contains(&table),
            "{page} has another table than\n{table}"
        );
    }

    #[test]
    fn events_come_first_and_servers_get_the_library() {
        use ProgramKind::{Elsewhere, Script, Server, Stream};
        for (kind, has_events, takes_library, expected) in [
            (Stream, true, true, CommandMeans::Events(FollowScope::All)),
            (Stream, true, false, CommandMeans::Events(FollowScope::All)),
            (Stream, false, true, CommandMeans::Library),
            (Stream, false, false, CommandMeans::Nothing),
            (Script, true, true, CommandMeans::Events(FollowScope::ByName)),
            (Script, true, false, CommandMeans::Events(FollowScope::ByName)),
            (Script, false, true, CommandMeans::Library),
            (Script, false, false, CommandMeans::Nothing),
            (Server, true, true, CommandMeans::Library),
            (Server, true, false, CommandMeans::Nothing),
            (Server, false, true, CommandMeans::Library),
            (Server, false, false, CommandMeans::Nothing),
            (Elsewhere, true, true, CommandMeans::Nothing),
            (Elsewhere, true, false, CommandMeans::Nothing),
            (Elsewhere, false, true, CommandMeans::Nothing),
            (Elsewhere, false, false, CommandMeans::Nothing),
        ] {
            assert_eq!(
                choose(kind, has_events, takes_library),
                expected,
                "{kind:?} {has_events} {takes_library}"
            );
        }
    }
}
