//! Helpers of this crate's own tests.

use std::sync::Arc;

pub(crate) use pagekeeper_testing::fake_process;

use crate::Profile;

/// Returns the built-in profiles.
pub(crate) fn profiles() -> Vec<Arc<Profile>> {
    Profile::built_in().into_iter().map(Arc::new).collect()
}
