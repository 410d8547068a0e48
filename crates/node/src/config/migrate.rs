// SPDX-License-Identifier: Apache-2.0
//! Rewrites renamed keys and values of a configuration file. Only the names change: comments, order and
//! formatting stay.
//!
//! A rename is made at every position of the key, because `[agent]`, `[agent.upstream]` and
//! `[[agent.hook]]` each contain its name. The parser's events give these positions.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use toml_parser::parser::{Event, EventKind, parse_document};
use toml_parser::{Source, Span};

use super::document::{SettingError, SettingErrors, line_of, syntax_message};
use super::{MAX_FILE_SIZE, renamed};

/// The result of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// The text of the file before.
    pub before: String,
    /// The text with the new names.
    pub after: String,
    /// The names that changed, in the order of the text; empty if the file has no old names.
    pub renames: Vec<Rename>,
}

/// One changed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The line number; the first line is 1.
    pub line: u32,
    /// The old name, as it is written in the file.
    pub old: String,
    /// The new name.
    pub new: String,
}

/// Why a file cannot be migrated. The file is unchanged in each case.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The kernel's error, or that the file is not UTF-8.
        source: io::Error,
    },
    /// The file is not valid TOML.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    NotToml(Vec<SettingError>),
    /// The file has an old name and the new one, and TOML does not allow a name twice.
    #[error("the file has an old and a new name for the same thing: {0}")]
    Conflict(SettingError),
    /// The new text cannot be written.
    #[error("cannot write {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Reads `file` and renames its old keys and values, without writing it.
pub fn read(file: &Path) -> Result<Migration, MigrateError> {
    let text =
        read_utf8(file).map_err(|source| MigrateError::Read { file: file.to_owned(), source })?;
    migrate(file, text)
}

/// Replaces the content of `file` with the new text. The replacement is atomic and keeps the mode, the owner
/// and the group.
pub fn write(file: &Path, migration: &Migration) -> Result<(), MigrateError> {
    replace_content(file, &migration.after)
        .map_err(|source| MigrateError::Write { file: file.to_owned(), source })
}

/// Renames the old keys and values in `text`, the content of `file`.
fn migrate(file: &Path, text: String) -> Result<Migration, MigrateError> {
    let errors = syntax_errors(file, &text);
    if !errors.is_empty() {
        return Err(MigrateError::NotToml(errors));
    }
    let mut after = String::with_capacity(text.len());
    let mut renames = Vec::new();
    let mut copied = 0;
    for edit in find_edits(&text) {
        let (start, end) = (edit.span.start(), edit.span.end());
        after.push_str(&text[copied..start]);
        after.push_str(&edit.new);
        copied = end;
        let (line, old) = (line_of(&text, start), text[start..end].to_owned());
        renames.push(Rename { line, old, new: edit.new });
    }
    after.push_str(&text[copied..]);
    if let Some(error) = syntax_errors(file, &after).into_iter().next() {
        return Err(MigrateError::Conflict(error));
    }
    Ok(Migration { before: text, after, renames })
}

fn syntax_errors(file: &Path, text: &str) -> Vec<SettingError> {
    let mut errors = SettingErrors::new(file, text);
    for error in toml::de::DeTable::parse_recoverable(text).1 {
        let offset = error.span().map_or(0, |span| span.start);
        errors.add(offset, syntax_message(error.message(), text, offset));
    }
    errors.list
}

/// A part of the text and its replacement.
struct Edit {
    span: Span,
    new: String,
}

/// The edits of a valid document, in the order of the text.
fn find_edits(text: &str) -> Vec<Edit> {
    let source = Source::new(text);
    let tokens = source.lex().into_vec();
    let mut finder = EditFinder { text, edits: Vec::new(), header: Vec::new(), levels: Vec::new() };
    let mut on_event = |event: Event| finder.take(&event);
    parse_document(&tokens, &mut on_event, &mut ());
    finder.edits
}

/// Follows the events of the parser and knows the path of each key.
struct EditFinder<'t> {
    text: &'t str,
    edits: Vec<Edit>,
    /// The keys of the last `[header]` or `[[header]]`.
    header: Vec<&'t str>,
    /// The document below the header, then each inline table and array that is open.
    levels: Vec<Level<'t>>,
}

/// A header, the keys below a header, an inline table or an array.
struct Level<'t> {
    kind: LevelKind,
    /// The path of the table that contains `keys`.
    base: Vec<&'t str>,
    /// The parts of the key that is read, or that the value being read belongs to.
    keys: Vec<&'t str>,
    /// Whether `=` has followed, so that the next key is a new one.
    has_value: bool,
}

#[derive(PartialEq, Eq)]
enum LevelKind {
    Header,
    Table,
    Array,
}

impl<'t> EditFinder<'t> {
    fn take(&mut self, event: &Event) {
        match event.kind() {
            EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                self.levels = vec![Level::new(LevelKind::Header, Vec::new())];
            }
            EventKind::StdTableClose | EventKind::ArrayTableClose => {
                self.header = self.levels.pop().map(|header| header.keys).unwrap_or_default();
            }
            EventKind::InlineTableOpen => self.open(LevelKind::Table),
            EventKind::ArrayOpen => self.open(LevelKind::Array),
            EventKind::InlineTableClose | EventKind::ArrayClose => {
                self.levels.pop();
            }
            EventKind::SimpleKey => self.take_key(event.span()),
            EventKind::KeyValSep => self.level().has_value = true,
            EventKind::Scalar => self.take_value(event.span()),
            _ => {}
        }
    }

    /// The innermost level. Keys outside of every level are below the last header.
    fn level(&mut self) -> &mut Level<'t> {
        if self.levels.is_empty() {
            self.levels.push(Level::new(LevelKind::Table, self.header.clone()));
        }
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn open(&mut self, kind: LevelKind) {
        let base = self.level().path();
        self.levels.push(Level::new(kind, base));
    }

    fn take_key(&mut self, span: Span) {
        let key = unquote(&self.text[span.start()..span.end()]);
        let level = self.level();
        if std::mem::take(&mut level.has_value) {
            level.keys.clear();
        }
        let table = level.path().join(".");
        level.keys.push(key);
        if let Some(renamed) = renamed::by_old_key(&table, key) {
            self.edits.push(Edit { span, new: renamed.new.to_owned() });
        }
    }

    fn take_value(&mut self, span: Span) {
        let value = unquote(&self.text[span.start()..span.end()]);
        let level = self.level();
        let path = level.path();
        let Some((key, table)) = path.split_last() else { return };
        if level.kind == LevelKind::Array {
            return;
        }
        if let Some(renamed) = renamed::by_old_value(&table.join("."), key, value) {
            self.edits.push(Edit { span, new: format!("{:?}", renamed.new) });
        }
    }
}

impl<'t> Level<'t> {
    fn new(kind: LevelKind, base: Vec<&'t str>) -> Self {
        Self { kind, base, keys: Vec::new(), has_value: false }
    }

    fn path(&self) -> Vec<&'t str> {
        self.base.iter().chain(&self.keys).copied().collect()
    }
}

/// A key or a string without its quotes. No renamed name has an escape in it.
fn unquote(text: &str) -> &str {
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    text
}

fn read_utf8(path: &Path) -> io::Result<String> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let file = File::open(path)?;
    if file.metadata()?.len() > MAX_FILE_SIZE {
        let text = format!("it has more than {MAX_FILE_SIZE} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut text = String::new();
    file.take(MAX_FILE_SIZE).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes `text` to a new file in the same directory and renames it to `path`. A symbolic link stays: the file
/// it leads to is replaced.
///
/// LIMIT: access control lists and extended attributes of the file are lost.
fn replace_content(path: &Path, text: &str) -> io::Result<()> {
    let path = path.canonicalize()?;
    let metadata = path.metadata()?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let temporary = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let temporary = directory.join(temporary);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let replaced = fill(&file, &metadata, text).and_then(|()| std::fs::rename(&temporary, &path));
    if let Err(error) = replaced {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

fn fill(mut file: &File, metadata: &std::fs::Metadata, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    let own = file.metadata()?;
    // ORDER: the owner before the mode, so that the mode never gives a permission to the wrong user.
    if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
        fchown(file, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    file.set_permissions(std::fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
