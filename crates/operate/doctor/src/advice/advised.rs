//! The advice for a goal on one server, or the reason why there is none.

use crate::Fix;
use crate::settings::Settings;

/// The advice for a goal, and remarks where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advised {
    /// The settings, most effective first.
    pub fixes: Vec<Fix>,
    /// Limits of settings, and reasons why one is not advised.
    pub remarks: Vec<String>,
}

/// Returns a remark that no setting is advised, if the engine is uncertain.
pub(crate) fn uncertain(settings: &Settings) -> Option<String> {
    let why = settings.engine_doubt.as_ref()?;
    Some(format!("no setting is named: {why}"))
}
