//! Colours and signs, as the terminal can show them.

use ratatui::style::{Color, Style};

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Theme {
    /// Colours are welcome.
    pub(super) colour: bool,
    /// Its characters are those of Unicode.
    pub(super) unicode: bool,
}

impl Theme {
    pub(super) fn style(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn mark(self) -> &'static str {
        if self.unicode { "…" } else { "..." }
    }

    /// Signs of growing height.
    pub(super) fn heights(self) -> &'static [char] {
        if self.unicode {
            &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &['_', '.', '-', '=', '+', '*', '%', '#']
        }
    }

    /// Signs of growing share, the first for none and the last for all.
    pub(super) fn shades(self) -> &'static [char] {
        if self.unicode { &['·', '░', '▒', '▓', '█'] } else { &['.', '-', '+', '*', '#'] }
    }
}
