//! The settings of the server that a directory's logs are of, as far as they decide how its logs are written.
//!
//! Invariant: they are read once for each database, by the catalog's reader within its limits, in the thread that serves the
//! database. Never fails: what can't be read is not set, or doubtful.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pagekeeper_catalog::Profile;
use pagekeeper_catalog::settings::{Engine, Server, Settings, SettingsReader};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::text::unescaped;

/// The settings of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerSettings {
    whose: Option<Whose>,
    read: OnceLock<Settings>,
}

/// Where they are read.
#[derive(Debug)]
struct Whose {
    proc: ProcRoot,
    pid: Option<u32>,
    profile: Arc<Profile>,
    is_certain: bool,
    directory: PathBuf,
}

impl ServerSettings {
    /// Those of a process.
    pub(crate) fn of_process(
        proc: &ProcRoot,
        pid: u32,
        profile: &Arc<Profile>,
        is_certain: bool,
    ) -> Arc<Self> {
        Self::of(proc, Some(pid), profile, is_certain, PathBuf::new())
    }

    /// Those of whatever server works in a directory.
    pub(crate) fn of_directory(proc: &ProcRoot, directory: PathBuf, profile: &Arc<Profile>) -> Arc<Self> {
        Self::of(proc, None, profile, true, directory)
    }

    fn of(
        proc: &ProcRoot,
        pid: Option<u32>,
        profile: &Arc<Profile>,
        is_certain: bool,
        directory: PathBuf,
    ) -> Arc<Self> {
        let whose = Whose { proc: proc.clone(), pid, profile: Arc::clone(profile), is_certain, directory };
        Arc::new(Self { whose: Some(whose), read: OnceLock::new() })
    }

    /// Whether a log of a profile asks for them, and they were not read yet.
    pub(crate) fn are_wanted(&self, profile: &Profile) -> bool {
        let asks =
            || profile.logs.iter().any(|log| log.block_option.is_some() || !log.overwritten_if.is_empty());
        self.whose.is_some() && self.read.get().is_none() && asks()
    }

    /// The settings, which are read if they were not yet.
    pub(crate) fn get(&self) -> &Settings {
        self.read.get_or_init(|| match &self.whose {
            Some(whose) => SettingsReader::default().read(&whose.server(), &whose.proc),
            None => Settings::new(Engine::Other),
        })
    }
}

impl Whose {
    fn server(&self) -> Server {
        let name = self.pid.and_then(|pid| self.proc.name(pid).ok()).unwrap_or_default();
        let mut engines = self.profile.names().map(|profile| Engine::of(profile, &unescaped(&name)));
        let engine = engines.find(|engine| *engine != Engine::Other).unwrap_or(Engine::Other);
        match self.pid {
            Some(pid) => Server::of_process(pid, engine, self.is_certain, &self.proc),
            None => Server {
                pid: None,
                engine,
                is_certain: self.is_certain,
                is_brief: true,
                directories: vec![self.directory.clone()],
                command_line: Vec::new(),
                started: None,
                files: Vec::new(),
            },
        }
    }
}
