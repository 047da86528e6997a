//! `seeds DIRECTORY` writes the inputs that fuzzing begins with: `DIRECTORY/TARGET/seed-N`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).expect("a directory");
    for target in pagekeeper_fuzzing::TARGETS {
        let corpus = Path::new(&directory).join(target.name);
        std::fs::create_dir_all(&corpus)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(corpus.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
