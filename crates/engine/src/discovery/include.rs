//! Reads a configuration and everything it includes, as one list of statements.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vipwatch_core::keepalived::{Definitions, Place, Problem, Statement, tree};
use vipwatch_linux::file::read_text;

/// Longer than any configuration that a person or Neutron has written.
const LIMIT: u64 = 4 << 20;
/// Includes within includes.
const DEPTH: usize = 64;
/// More files than that are a mistake.
const FILES: usize = 10_000;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// With what was included in the place of the `include`.
    pub(super) statements: Vec<Statement>,
    /// The files, by their number in a [`Place`].
    pub(super) files: Vec<PathBuf>,
    pub(super) problems: Vec<Problem>,
    pub(super) unread: Vec<(PathBuf, io::Error)>,
    /// When the youngest of the files was written.
    pub(super) written: Option<SystemTime>,
    /// Other files belong to it, which may change while this one does not.
    pub(super) has_includes: bool,
}

/// Reads `file` and what it includes.
pub(super) fn load(file: &Path) -> Loaded {
    let mut loaded = Loaded::default();
    let mut definitions = Definitions::new();
    loaded.statements = loaded.read(file, &mut definitions, &mut Vec::new());
    loaded
}

impl Loaded {
    /// `above` are the files that led here.
    fn read(
        &mut self,
        file: &Path,
        definitions: &mut Definitions,
        above: &mut Vec<PathBuf>,
    ) -> Vec<Statement> {
        let text = match read_text(file, LIMIT) {
            Ok(text) => text,
            Err(error) => {
                self.unread.push((file.to_owned(), error));
                return Vec::new();
            }
        };
        let written = std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        self.written = self.written.max(written);
        let number = self.files.len();
        self.files.push(file.to_owned());
        let statements = tree::parse(&text, number, definitions, &mut self.problems);
        above.push(file.to_owned());
        let statements = self.resolve(statements, definitions, above);
        above.pop();
        statements
    }

    fn resolve(
        &mut self,
        statements: Vec<Statement>,
        definitions: &mut Definitions,
        above: &mut Vec<PathBuf>,
    ) -> Vec<Statement> {
        let mut resolved = Vec::with_capacity(statements.len());
        for mut statement in statements {
            // Besides `include` there are letters behind it that say how to complain.
            let letter = statement.keyword().strip_prefix("include");
            if letter.is_some_and(|letter| letter.len() <= 1) {
                let pattern = statement.argument().unwrap_or_default().to_owned();
                resolved.extend(self.include(&pattern, statement.place, definitions, above));
                continue;
            }
            statement.block = self.resolve(statement.block, definitions, above);
            resolved.push(statement);
        }
        resolved
    }

    fn include(
        &mut self,
        pattern: &str,
        place: Place,
        definitions: &mut Definitions,
        above: &mut Vec<PathBuf>,
    ) -> Vec<Statement> {
        // A relative name is relative to the file it stands in.
        let base = above.last().and_then(|file| file.parent()).unwrap_or(Path::new("/"));
        let whole = base.join(pattern);
        let found: Vec<PathBuf> = glob::glob(&whole.to_string_lossy())
            .map(|paths| paths.flatten().filter(|path| !path.is_dir()).collect())
            .unwrap_or_default();
        self.has_includes = true;
        if found.is_empty() {
            // keepalived goes on without it.
            let text = format!("include {pattern}: there is no such file");
            self.problems.push(Problem::note(place, text));
        }
        let mut statements = Vec::new();
        for file in found {
            if above.contains(&file) || above.len() >= DEPTH {
                let text = format!("include {pattern} goes round in a circle");
                self.problems.push(Problem::new(place, text));
            } else if self.files.len() >= FILES {
                let text = format!("include {pattern}: more than {FILES} files");
                self.problems.push(Problem::new(place, text));
                break;
            } else {
                statements.extend(self.read(&file, definitions, above));
            }
        }
        statements
    }
}
