//! Text into statements and blocks.
//!
//! ```text
//!   vrrp_instance VI_1 {          words, and a block of statements
//!       interface eth0            words
//!       virtual_ipaddress {
//!           192.0.2.9/24 dev eth0 # a comment ends the line, and so does !
//!       }
//!   }
//! ```
//!
//! A brace may stand at the end of a line, on its own, or among the words. Quotes keep what is
//! between them together. `$NAME=value` defines, `$NAME` and `${NAME}` use.

use std::collections::BTreeMap;
use std::fmt;

/// Where something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which file, by whoever numbered them.
    pub file: usize,
    /// Which line; 1 is the first.
    pub line: u32,
}

/// Something that could not be understood, where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What.
    pub text: String,
    /// Whether what was read can be relied on all the same.
    pub weight: Weight,
}

/// What a problem means for the rest of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Worth a word; the rest is what was meant.
    Note,
    /// The file is not what was meant, or not all of it.
    Grave,
}

impl Problem {
    /// The file is not what was meant.
    pub fn new(place: Place, text: impl fmt::Display) -> Self {
        Self { place, text: text.to_string(), weight: Weight::Grave }
    }

    /// It is, but this is worth a word.
    pub fn note(place: Place, text: impl fmt::Display) -> Self {
        Self { place, text: text.to_string(), weight: Weight::Note }
    }
}

/// Some words, and the block that follows them, if one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Where it begins.
    pub place: Place,
    /// Its words; never none.
    pub words: Vec<String>,
    /// What its block holds.
    pub block: Vec<Statement>,
}

impl Statement {
    /// Its first word.
    pub fn keyword(&self) -> &str {
        &self.words[0]
    }

    /// The word after the first.
    pub fn argument(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str)
    }
}

/// What `$NAME` stands for, in all files together.
pub type Definitions = BTreeMap<String, String>;

/// Blocks within blocks: keepalived has four.
const DEPTH: usize = 64;

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Open,
    Close,
    End,
}

/// The statements of `text`, which is file number `file`. What makes no sense is left out and
/// said; the rest is taken.
pub fn parse(
    text: &str,
    file: usize,
    definitions: &mut Definitions,
    problems: &mut Vec<Problem>,
) -> Vec<Statement> {
    let mut open: Vec<(Statement, Vec<Statement>)> = Vec::new();
    let mut statements: Vec<Statement> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut began = Place { file, line: 1 };
    for (line, number) in text.lines().zip(1_u32..) {
        let place = Place { file, line: number };
        let trimmed = line.trim_start();
        if trimmed.starts_with('@') {
            let text = "a line for some nodes only (@) is not taken into account";
            problems.push(Problem::note(place, text));
            continue;
        }
        if let Some((name, value)) = definition(trimmed) {
            definitions.insert(name.to_owned(), value.to_owned());
            continue;
        }
        for token in tokens(line, place, definitions, problems) {
            match token {
                Token::Word(word) => {
                    if words.is_empty() {
                        began = place;
                    }
                    words.push(word);
                }
                Token::End => {
                    flush(&mut words, began, &mut statements);
                }
                Token::Open => {
                    flush(&mut words, began, &mut statements);
                    // A brace on a line of its own belongs to the statement before.
                    match statements.pop() {
                        Some(head) if head.block.is_empty() && open.len() < DEPTH => {
                            open.push((head, std::mem::take(&mut statements)));
                        }
                        other => {
                            statements.extend(other);
                            problems.push(Problem::new(place, "{ that belongs to nothing"));
                        }
                    }
                }
                Token::Close => {
                    flush(&mut words, began, &mut statements);
                    match open.pop() {
                        Some((mut head, before)) => {
                            head.block = std::mem::replace(&mut statements, before);
                            statements.push(head);
                        }
                        None => problems.push(Problem::new(place, "} without a { before it")),
                    }
                }
            }
        }
    }
    while let Some((mut head, before)) = open.pop() {
        let text = format!("{} is not closed: the file ends inside it", head.words.join(" "));
        problems.push(Problem::new(head.place, text));
        head.block = std::mem::replace(&mut statements, before);
        statements.push(head);
    }
    statements
}

fn flush(words: &mut Vec<String>, place: Place, statements: &mut Vec<Statement>) {
    if !words.is_empty() {
        statements.push(Statement { place, words: std::mem::take(words), block: Vec::new() });
    }
}

/// `$NAME=value`, on a line of its own.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix('$')?.split_once('=')?;
    let name = name.trim_end();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| (name, value.trim()))
}

/// The tokens of one line, with an end.
fn tokens(
    line: &str,
    place: Place,
    definitions: &Definitions,
    problems: &mut Vec<Problem>,
) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    let mut has_word = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' | '!' => break,
            '{' | '}' | ' ' | '\t' | '\r' => {
                if std::mem::take(&mut has_word) {
                    tokens.push(Token::Word(std::mem::take(&mut word)));
                }
                match c {
                    '{' => tokens.push(Token::Open),
                    '}' => tokens.push(Token::Close),
                    _ => {}
                }
            }
            '"' | '\'' => {
                has_word = true;
                let mut is_closed = false;
                for quoted in chars.by_ref() {
                    if quoted == c {
                        is_closed = true;
                        break;
                    }
                    word.push(quoted);
                }
                if !is_closed {
                    problems.push(Problem::new(place, "a quote is not closed on its line"));
                }
            }
            '\\' => {
                has_word = true;
                word.extend(chars.next());
            }
            '$' => {
                has_word = true;
                let name = variable(&mut chars);
                match definitions.get(&name) {
                    Some(value) => word.push_str(value),
                    None => problems.push(Problem::new(place, format!("${name} is not defined"))),
                }
            }
            other => {
                has_word = true;
                word.push(other);
            }
        }
    }
    if has_word {
        tokens.push(Token::Word(word));
    }
    tokens.push(Token::End);
    tokens
}

/// The name behind a `$`, in braces or not.
fn variable(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut name = String::new();
    if chars.next_if_eq(&'{').is_some() {
        name.extend(chars.by_ref().take_while(|c| *c != '}'));
        return name;
    }
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (Vec<Statement>, Vec<Problem>) {
        let mut problems = Vec::new();
        let statements = parse(text, 0, &mut Definitions::new(), &mut problems);
        (statements, problems)
    }

    /// Words and blocks, in brackets.
    fn shape(statements: &[Statement]) -> String {
        let each = |statement: &Statement| {
            let words = statement.words.join(" ");
            match statement.block.as_slice() {
                [] => words,
                block => format!("{words} [{}]", shape(block)),
            }
        };
        statements.iter().map(each).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn braces_may_stand_where_they_like() {
        let expected = "vrrp_instance VI_1 [interface eth0; track_interface [eth0]]";
        for text in [
            "vrrp_instance VI_1 {\n interface eth0\n track_interface {\n  eth0\n }\n}\n",
            "vrrp_instance VI_1\n{\n interface eth0\n track_interface { eth0 }\n}",
            "vrrp_instance VI_1{\r\ninterface eth0\r\ntrack_interface\r\n{ eth0 }}\r\n",
        ] {
            let (statements, problems) = read(text);
            assert_eq!(shape(&statements), expected, "{text}");
            assert_eq!(problems, []);
        }
    }

    #[test]
    fn comments_end_a_line_and_quotes_keep_words_together() {
        let (statements, problems) =
            read("! a comment\nauth_pass \"a # b\" # really\nname 'x y'z\n#include other\n");
        assert_eq!(statements[0].words, ["auth_pass", "a # b"]);
        assert_eq!(statements[1].words, ["name", "x yz"]);
        assert_eq!((statements.len(), problems.len()), (2, 0));
        assert_eq!(statements[1].place.line, 3);
    }

    #[test]
    fn what_was_defined_is_put_in_its_place() {
        let (statements, problems) =
            read("$IF=eth0\n$NET=192.0.2\ninterface $IF\nvip ${NET}.9/24 dev $IF\nx $NO\n");
        assert_eq!(shape(&statements[..2]), "interface eth0; vip 192.0.2.9/24 dev eth0");
        assert_eq!(problems[0].text, "$NO is not defined");
    }

    #[test]
    fn what_is_broken_is_said_with_its_line_and_the_rest_is_taken() {
        let (statements, problems) = read("}\na {\n b \"c\n\nd {\n e\n");
        assert_eq!(shape(&statements), "a [b c; d [e]]");
        let said: Vec<(u32, &str)> =
            problems.iter().map(|problem| (problem.place.line, problem.text.as_str())).collect();
        assert_eq!(said[0], (1, "} without a { before it"));
        assert_eq!(said[1], (3, "a quote is not closed on its line"));
        assert!(said[2].1.contains("d is not closed") && said[3].1.contains("a is not closed"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            read(&text);
        }

        #[test]
        fn no_near_miss_makes_it_panic(
            text in "(vrrp_instance|virtual_ipaddress|[{}#!@$\"'\\\\= \n]|10\\.0\\.0\\.1/24|dev){0,60}"
        ) {
            read(&text);
        }
    }
}
