//! The settings of the databases of a snapshot: the catalog's reader, applied to the snapshot's
//! data.

use pagekeeper_catalog::settings as catalog;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_observe::{Database, File, OpenerKind, Snapshot};

pub use catalog::{
    BUFFERED_METHOD, Engine, OpenMode, SETTINGS_FILE_BYTES_MAX, ServerFacts, ServerFile, ServerRoot, Setting,
    SettingOrigin, Settings, SettingsReader, guc, option_file, options, toml_keys,
};

/// Reads the settings of a database in `snapshot`.
pub fn read(
    reader: &mut SettingsReader,
    database: &Database,
    snapshot: &Snapshot,
    roots: &SysRoots,
) -> Settings {
    reader.read(&server(database, snapshot), &roots.proc)
}

/// Returns a database of a snapshot in the form that the settings reader takes.
pub(crate) fn server(database: &Database, snapshot: &Snapshot) -> ServerFacts {
    let files = snapshot.files.iter().filter_map(|file| file_of(database, file));
    ServerFacts {
        pid: database.pid,
        engine: Engine::of(&database.profile.name, &database.name),
        is_certain: false,
        is_brief: false,
        directories: database.directories.clone(),
        command_line: database.command_line.clone(),
        started: database.uptime.and_then(|uptime| snapshot.at.checked_sub(uptime)),
        files: files.collect(),
    }
}

/// Returns a file if it belongs to a database: its process has it open, or it is in one of its
/// directories.
fn file_of(database: &Database, file: &File) -> Option<ServerFile> {
    let own = file.openers.iter().filter(|opener| Some(opener.pid) == database.pid);
    let opened: Vec<OpenMode> = own.map(|opener| opened(opener.kind)).collect();
    let is_inside = || database.directories.iter().any(|directory| file.path.starts_with(directory));
    (!opened.is_empty() || is_inside()).then(|| ServerFile { path: file.path.clone(), opened })
}

fn opened(kind: OpenerKind) -> OpenMode {
    match kind {
        OpenerKind::Direct(_) => OpenMode::Direct,
        OpenerKind::Buffered(_) => OpenMode::Buffered,
        OpenerKind::Mapped { .. } => OpenMode::Mapped,
    }
}
