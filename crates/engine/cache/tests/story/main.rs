//! Stories of a user of the cache: opening, checking pages, keeping them, counting.

mod admission;
mod changes;
mod counts;
mod files;
mod guards;
mod huge_pages;
mod open;
mod others;
mod verifier;

#[path = "../../examples/cache.rs"]
mod example;
#[path = "../support/mod.rs"]
mod support;

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}
