// SPDX-License-Identifier: Apache-2.0
//! Separates the comments and literals of Rust source from the code. It knows no grammar beyond that.

/// The kind of a [`Piece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// A line comment without its line feed, or a whole block comment.
    Comment,
    /// A string or character literal with its quotes.
    Literal,
}

/// A comment or a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub kind: PieceKind,
    /// Offset of the first byte.
    pub start: usize,
    pub text: &'a str,
}

/// All comments and literals, in order. Everything between them is code.
pub fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let is_word_start = !text[..at].ends_with(is_word_char);
        let found =
            comment_length(&text[at..]).map(|length| (PieceKind::Comment, length)).or_else(|| {
                literal_length(&text[at..], is_word_start).map(|l| (PieceKind::Literal, l))
            });
        match found {
            Some((kind, length)) => {
                pieces.push(Piece { kind, start: at, text: &text[at..at + length] });
                at += length;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    pieces
}

/// The number of the line with byte `at`, counted from 1.
pub fn line_number(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The code without comments, literals and inline test modules: their characters are replaced by spaces, so that
/// all other characters keep their offsets.
pub fn code(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for piece in pieces(text) {
        blank(&mut bytes[piece.start..piece.start + piece.text.len()]);
    }
    // Only whole pieces were replaced, so that this is UTF-8.
    let mut code = String::from_utf8(bytes).unwrap_or_default();
    while let Some((start, end)) = test_module(&code) {
        let mut bytes = code.into_bytes();
        blank(&mut bytes[start..end]);
        code = String::from_utf8(bytes).unwrap_or_default();
    }
    code
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// The first `#[cfg(test)] mod NAME { … }` of code without literals, as start and end.
fn test_module(code: &str) -> Option<(usize, usize)> {
    for (start, mark) in code.match_indices("#[cfg(test)]") {
        let rest = code[start + mark.len()..].trim_start();
        let open = rest.find('{')?;
        let head = rest[..open].trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if head.starts_with("mod ") && !head.contains(';') {
            let open = code.len() - rest.len() + open;
            return Some((start, open + group_length(&code[open..])?));
        }
    }
    None
}

/// The length of the group that begins with the bracket at the start of `code`, with both brackets.
pub fn group_length(code: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(at + character.len_utf8());
        }
    }
    None
}

fn is_word_char(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn comment_length(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    let mut depth = 0_usize;
    let mut at = 0;
    // Block comments of Rust may be nested.
    while text.starts_with("/*") && at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.starts_with("/*").then_some(text.len())
}

fn literal_length(text: &str, is_word_start: bool) -> Option<usize> {
    if text.starts_with('"') {
        return Some(quoted_length(text, '"'));
    }
    if let Some(rest) = text.strip_prefix('\'') {
        // `'a'` and `'\n'` are characters, `'a` is a lifetime.
        let first = rest.chars().next()?;
        let is_character = first == '\\' || rest[first.len_utf8()..].starts_with('\'');
        return is_character.then(|| quoted_length(text, '\''));
    }
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let rest = text.strip_prefix(prefix);
        is_word_start && rest.is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    })?;
    let hashes = text[prefix.len()..].find('"')?;
    let body = prefix.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text[body..].find(&end).map_or(text.len(), |length| body + length + end.len()))
}

/// The length of a literal with escapes, up to and including the closing `quote`.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            character if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str, kind: PieceKind) -> Vec<&str> {
        let found = pieces(source).into_iter().filter(|piece| piece.kind == kind);
        found.map(|piece| piece.text).collect()
    }

    #[test]
    fn comments_and_literals_are_separated() {
        let source =
            "let a = \"no // comment\"; // yes \"no literal\"\n/* a /* b */ c */ let c = '\"';";
        assert_eq!(
            texts(source, PieceKind::Comment),
            ["// yes \"no literal\"", "/* a /* b */ c */"]
        );
        assert_eq!(texts(source, PieceKind::Literal), ["\"no // comment\"", "'\"'"]);
    }

    #[test]
    fn raw_strings_escapes_and_lifetimes_are_recognised() {
        let source = r##"f::<'a>(r#"a "b" c"#, b"\"", '\'', br"x", "é\\")"##;
        let expected = [r##"r#"a "b" c"#"##, r#""\"""#, r"'\''", "br\"x\"", "\"é\\\\\""];
        assert_eq!(texts(source, PieceKind::Literal), expected);
    }

    #[test]
    fn the_code_keeps_its_offsets_and_loses_its_test_module() {
        let source =
            "struct A; // é\n#[cfg(test)]\nmod tests {\n    struct B { c: () }\n}\nstruct D;\n";
        let code = code(source);
        assert_eq!(code.len(), source.len());
        assert!(code.contains("struct A;") && code.contains("struct D;"));
        assert!(!code.contains("struct B"));
        assert_eq!(line_number(&code, code.find("struct D").unwrap()), 6);
    }

    #[test]
    fn a_test_module_in_another_file_hides_nothing() {
        let source = "#[cfg(test)]\nmod tests;\nstruct A {}\n";
        assert!(code(source).contains("struct A {}"));
    }
}
