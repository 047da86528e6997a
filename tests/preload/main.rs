//! Programs under `pagekeeper run`: every call, real programs, torture, and what stays in memory.

#[path = "../support/mod.rs"]
mod support;

mod archives;
mod backups;
mod barman;
mod calls;
mod children;
mod ends;
mod followed;
mod hot;
mod library_streams;
mod obstacles;
mod other_root;
mod pieces;
mod programs;
mod reach;
mod report;
mod run;
mod serves;
mod small;
mod temporary;
mod tools;
mod torture;
mod unlisted;
