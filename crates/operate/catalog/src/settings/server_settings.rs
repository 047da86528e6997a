//! Settings of the server that writes a directory's logs, as far as they decide how these logs are
//! written.
//!
//! Invariants: settings are read once per process, in the thread that serves the database, by the
//! catalog's reader and within its limits. For a directory that was named they are read at each
//! listing, since its server may be another one by then. Reading never fails: a setting that can't
//! be read counts as not set, or as doubtful.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::unescaped;

use super::{Engine, ServerFacts, Settings, SettingsReader};
use crate::profile::{LogSpec, Profile};

/// The settings of one server.
#[derive(Debug, Default)]
pub struct ServerSettings {
    whose: Option<Arc<SettingsSource>>,
    read: OnceLock<Settings>,
}

/// The place from which the settings are read.
#[derive(Debug)]
struct SettingsSource {
    proc: ProcRoot,
    pid: Option<u32>,
    profile: Arc<Profile>,
    is_certain: bool,
    directory: PathBuf,
}

impl ServerSettings {
    /// Returns the settings of a process, or of whatever server works in a directory.
    pub fn of(
        proc: &ProcRoot,
        pid: Option<u32>,
        directory: PathBuf,
        profile: &Arc<Profile>,
        is_certain: bool,
    ) -> Arc<Self> {
        let (proc, profile) = (proc.clone(), Arc::clone(profile));
        let whose = Arc::new(SettingsSource { proc, pid, profile, is_certain, directory });
        Arc::new(Self { whose: Some(whose), read: OnceLock::new() })
    }

    /// Returns the settings of the same server, to be read again.
    pub fn unread(&self) -> Arc<Self> {
        Arc::new(Self { whose: self.whose.clone(), read: OnceLock::new() })
    }

    /// Returns whether a log of a profile needs the settings and they were not read yet.
    pub fn are_wanted(&self, profile: &Profile) -> bool {
        let asks = || profile.logs.iter().any(|log| names_asked_by(log).next().is_some());
        self.whose.is_some() && self.read.get().is_none() && asks()
    }

    /// Returns the settings. Reads them if that was not done yet.
    pub fn get(&self) -> &Settings {
        self.read.get_or_init(|| {
            let Some(whose) = &self.whose else { return Settings::new(Engine::Other) };
            let mut settings = SettingsReader::default().read(&whose.server(), &whose.proc);
            // Anyone may start a process that looks like a server and has a great many settings.
            let names: Vec<&str> = whose.profile.logs.iter().flat_map(names_asked_by).collect();
            settings.keep_only(&names);
            settings
        })
    }
}

impl SettingsSource {
    fn server(&self) -> ServerFacts {
        let name = self.pid.and_then(|pid| self.proc.name(pid).ok()).unwrap_or_default();
        let mut engines = self.profile.names().map(|profile| Engine::of(profile, &unescaped(&name)));
        let engine = engines.find(|engine| *engine != Engine::Other).unwrap_or(Engine::Other);
        match self.pid {
            Some(pid) => ServerFacts::of_process(pid, engine, self.is_certain, &self.proc),
            None => ServerFacts {
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

fn names_asked_by(log: &LogSpec) -> impl Iterator<Item = &str> {
    let recycled = log.recycled_if.as_ref().map(|recycled| recycled.key.as_str());
    let others = log.overwritten_if.iter().map(String::as_str);
    log.block_option.as_deref().into_iter().chain(recycled).chain(others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_profile;

    #[test]
    fn only_settings_that_a_log_needs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap();
        let options = "[DBOptions]\n  bytes_per_sync=0\n  recycle_log_file_num=4\n";
        std::fs::write(data.join("OPTIONS-000007"), options).unwrap();
        let profile = Arc::new(find_profile(&Profile::built_in(), "rocksdb").unwrap().clone());
        let settings = ServerSettings::of(&ProcRoot::default(), None, data, &profile, true);
        assert!(settings.are_wanted(&profile), "the log may lie apart from its options");
        let names: Vec<&str> = settings.get().all().iter().map(|setting| setting.name.as_str()).collect();
        assert_eq!(names, ["recycle_log_file_num"]);
        assert_eq!(ServerSettings::default().get().all(), []);
    }
}
