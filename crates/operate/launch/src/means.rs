//! Decides by which means the rules reach a command. It is pure, and the only place with that decision.
//!
//! Kernel events come first, since they need nothing inside the program. The library is for its own rules (bulk
//! pacing, logs at the sync, mixed I/O), and for streams if events are refused.

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
pub(crate) enum Followed {
    /// All.
    All,
    /// Those with the name of a stream, and their descendants.
    ByName,
}

/// The means by which the rules reach a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// A process beside it follows these of its processes by events.
    Events(Followed),
    /// The library is loaded into it and its descendants.
    Library,
    /// None.
    Nothing,
}

impl ProgramKind {
    /// Returns which of its processes are followed if that is possible.
    pub(crate) const fn followed(self) -> Option<Followed> {
        match self {
            Self::Stream => Some(Followed::All),
            Self::Script => Some(Followed::ByName),
            Self::Server | Self::Elsewhere => None,
        }
    }
}

/// Chooses the means for a command. `has_events`: this caller gets events on this kernel. `takes_library`: the
/// library can be loaded into the program.
pub(crate) const fn choose(kind: ProgramKind, has_events: bool, takes_library: bool) -> Means {
    match (kind, kind.followed()) {
        (_, Some(followed)) if has_events => Means::Events(followed),
        (ProgramKind::Elsewhere, _) => Means::Nothing,
        _ if takes_library => Means::Library,
        _ => Means::Nothing,
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

    fn cell(means: Means) -> &'static str {
        match means {
            Means::Events(Followed::All) => "events, of all its processes",
            Means::Events(Followed::ByName) => "events, of the streams that it starts",
            Means::Library => "library",
            Means::Nothing => "none, which is said",
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
            (Stream, true, true, Means::Events(Followed::All)),
            (Stream, true, false, Means::Events(Followed::All)),
            (Stream, false, true, Means::Library),
            (Stream, false, false, Means::Nothing),
            (Script, true, true, Means::Events(Followed::ByName)),
            (Script, true, false, Means::Events(Followed::ByName)),
            (Script, false, true, Means::Library),
            (Script, false, false, Means::Nothing),
            (Server, true, true, Means::Library),
            (Server, true, false, Means::Nothing),
            (Server, false, true, Means::Library),
            (Server, false, false, Means::Nothing),
            (Elsewhere, true, true, Means::Nothing),
            (Elsewhere, true, false, Means::Nothing),
            (Elsewhere, false, true, Means::Nothing),
            (Elsewhere, false, false, Means::Nothing),
        ] {
            assert_eq!(
                choose(kind, has_events, takes_library),
                expected,
                "{kind:?} {has_events} {takes_library}"
            );
        }
    }
}
