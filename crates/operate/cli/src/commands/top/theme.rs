//! Colours and signs that the terminal can show.

use ratatui::style::{Color, Style};

/// The capabilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Theme {
    /// Colours may be used.
    pub(super) colour: bool,
    /// Its characters are Unicode.
    pub(super) unicode: bool,
}

impl Theme {
    pub(super) fn style(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn mark(self) -> &'static str {
        if self.unicode { "…" } else { "..." }
    }

    /// Returns signs of growing height.
    pub(super) fn heights(self) -> &'static [char] {
        if self.unicode {
            &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &['_', '.', '-', '=', '+', '*', '%', '#']
        }
    }

    /// Returns signs of growing share, the first for none and the last for all.
    pub(super) fn shades(self) -> &'static [char] {
        if self.unicode { &['·', '░', '▒', '▓', '█'] } else { &['.', '-', '+', '*', '#'] }
    }
}
