//! Which mode, and why: of what was wished for, and what a probe found to be real.

use std::path::Path;

use super::BulkMode;
use crate::Error;
use crate::mode::{Offer, Probed};

/// A mode, never `Auto`, and why it is that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) mode: BulkMode,
    pub(super) why: String,
}

/// Probes the file system of the directory where that decides something.
pub(super) fn choose(wish: BulkMode, is_real: bool, directory: &Path) -> Result<Choice, Error> {
    let choice = |mode, why: &str| Ok(Choice { mode, why: why.to_owned() });
    match wish {
        BulkMode::Buffered => choice(wish, "as asked for"),
        BulkMode::Auto if !is_real => choice(BulkMode::Direct, "a simulated disk, which is not probed"),
        _ if !is_real => choice(wish, "as asked for, on a simulated disk, which is not probed"),
        _ => Ok(of_probed(wish, Probed::of(directory)?)),
    }
}

fn of_probed(wish: BulkMode, probed: Probed) -> Choice {
    let choice = |mode, why: &str| Choice { mode, why: why.to_owned() };
    match (wish, probed.direct, probed.uncached_append) {
        (BulkMode::Auto, Offer::Real, _) => {
            choice(BulkMode::Direct, "direct I/O is real here: no page is made that others could wait for")
        }
        (BulkMode::Direct, Offer::Real | Offer::Untold, _) | (BulkMode::Uncached, _, Offer::Real) => {
            choice(wish, "as asked for, and no page stays here")
        }
        (BulkMode::Paced, ..) => through_pages(probed.release, "as asked for"),
        (BulkMode::Uncached, _, offer) => through_pages(
            probed.release,
            &format!("uncached writing {}", offer.why_not().unwrap_or_default()),
        ),
        (_, offer, _) => {
            through_pages(probed.release, &format!("direct I/O {}", offer.why_not().unwrap_or_default()))
        }
    }
}

/// Paced, unless pages can't be released at all.
fn through_pages(release: Offer, why: &str) -> Choice {
    match release {
        Offer::Stays => Choice {
            mode: BulkMode::Buffered,
            why: "the page cache is the file itself here: there is nothing to wait for, nor to release"
                .to_owned(),
        },
        _ => Choice { mode: BulkMode::Paced, why: why.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const ALL: Probed = Probed {
        direct: Offer::Real,
        uncached_append: Offer::Real,
        uncached_overwrite: Offer::Real,
        release: Offer::Real,
    };

    #[test]
    fn the_next_best_is_taken_and_the_reason_told() {
        let refused = Offer::Refused(Errno::OPNOTSUPP);
        let btrfs = Probed { direct: Offer::Untold, uncached_append: refused, ..ALL };
        let memory = Probed { direct: Offer::Stays, uncached_append: refused, release: Offer::Stays, ..ALL };
        for (wish, probed, mode, why) in [
            (BulkMode::Auto, ALL, BulkMode::Direct, "direct I/O is real"),
            (BulkMode::Auto, btrfs, BulkMode::Paced, "direct I/O is not vouched for"),
            (BulkMode::Auto, memory, BulkMode::Buffered, "the page cache is the file"),
            (BulkMode::Direct, ALL, BulkMode::Direct, "as asked for"),
            (BulkMode::Direct, btrfs, BulkMode::Direct, "as asked for"),
            (BulkMode::Direct, Probed { direct: refused, ..ALL }, BulkMode::Paced, "direct I/O is refused"),
            (BulkMode::Uncached, ALL, BulkMode::Uncached, "as asked for"),
            (BulkMode::Uncached, btrfs, BulkMode::Paced, "uncached writing is refused"),
            (BulkMode::Uncached, memory, BulkMode::Buffered, "the page cache is the file"),
            (BulkMode::Paced, btrfs, BulkMode::Paced, "as asked for"),
            (BulkMode::Paced, memory, BulkMode::Buffered, "the page cache is the file"),
        ] {
            let chosen = of_probed(wish, probed);
            assert_eq!(chosen.mode, mode, "{wish} of {probed:?}");
            assert!(chosen.why.starts_with(why), "{chosen:?}");
        }
    }

    #[test]
    fn what_is_buffered_or_simulated_is_not_probed() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(choose(BulkMode::Buffered, true, nowhere).unwrap().mode, BulkMode::Buffered);
        assert_eq!(choose(BulkMode::Auto, false, nowhere).unwrap().mode, BulkMode::Direct);
        assert_eq!(choose(BulkMode::Paced, false, nowhere).unwrap().mode, BulkMode::Paced);
        assert!(choose(BulkMode::Paced, true, nowhere).is_err());
    }
}
