// SPDX-License-Identifier: Apache-2.0
//! Escapes text that another program, file or host supplied, before it reaches a terminal, a log or a shell script.
//!
//! Such text could otherwise begin a second log line, send commands to a terminal, or reorder what a
//! reader sees (bidirectional overrides, "Trojan Source", CVE-2021-42574).

use std::fmt::Write;

/// `text` with every harmful character replaced by its escape: `\n`, `\r`, `\t`, or `\u{202e}`.
pub fn escape_untrusted(text: &str) -> String {
    escape_untrusted_within(text, usize::MAX)
}

/// As [`escape_untrusted`]. The result ends with `…` as soon as it is longer than `max_bytes`.
pub fn escape_untrusted_within(text: &str, max_bytes: usize) -> String {
    let mut escaped = String::with_capacity(text.len().min(max_bytes));
    for c in text.chars() {
        if escaped.len() > max_bytes {
            escaped.push('…');
            break;
        }
        if is_harmful(c) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "{}", c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// `text` for the environment of a shell script. The characters that expand a variable, start a command or end a quotation
/// are escapes too, such as `\u{24}` for `$`, so that a script that evaluates the value again runs no command of it.
pub fn escape_for_shell(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) || "$`\\\"';&|<>".contains(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// JSON in which harmful characters are `\u202e` escapes: the same value, and safe on a terminal.
/// Such characters occur inside strings only, apart from the line breaks of pretty JSON.
pub fn escape_untrusted_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !is_harmful(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

/// Whether `c` controls the terminal, ends a line, changes the direction of text, or is invisible.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            // Zero width space and joiners; left-to-right and right-to-left mark.
            | '\u{200b}'..='\u{200f}'
            // Line and paragraph separator; bidirectional embeddings and overrides.
            | '\u{2028}'..='\u{202e}'
            // Word joiner, invisible operators, bidirectional isolates, deprecated format characters.
            | '\u{2060}'..='\u{206f}'
            // Byte order mark; interlinear annotation; tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes_and_other_text_stays() {
        assert_eq!(escape_untrusted("a\u{1b}[2J\r\n\té"), "a\\u{1b}[2J\\r\\n\\té");
        assert_eq!(escape_untrusted("\0\u{7f}\u{9b}31m"), "\\u{0}\\u{7f}\\u{9b}31m");
        let plain = "Router 1 (日本語, עברית, €) \"quoted\" \\ 100 %";
        assert_eq!(escape_untrusted(plain), plain);
    }

    #[test]
    fn bidirectional_controls_become_escapes() {
        let controls = ['\u{200e}', '\u{200f}', '\u{61c}'];
        for c in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}').chain(controls) {
            let expected = format!("a\\u{{{:x}}}b", u32::from(c));
            assert_eq!(escape_untrusted(&format!("a{c}b")), expected);
        }
    }

    #[test]
    fn separators_and_invisible_characters_become_escapes() {
        let invisible = "\u{2028}\u{2029}\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{ad}\u{180e}\
                         \u{fff9}\u{e0041}";
        let escaped = escape_untrusted(invisible);
        assert!(escaped.is_ascii(), "{escaped}");
        assert_eq!(escaped.matches("\\u{").count(), invisible.chars().count());
    }

    #[test]
    fn a_value_for_a_shell_has_no_character_that_starts_a_command() {
        let escaped = escape_for_shell("a (b) $(c)`d`;e&f|g>h<i\n\"'\\");
        assert_eq!(escaped.split_once(" $"), None);
        assert!(escaped.starts_with("a (b) \\u{24}(c)\\u{60}d"), "{escaped}");
        assert!(
            !escaped.contains(['$', '`', ';', '&', '|', '<', '>', '"', '\'', '\n']),
            "{escaped}"
        );
        assert_eq!(escaped.matches('\\').count(), 12);
    }

    #[test]
    fn json_stays_the_same_value() {
        assert_eq!(escape_untrusted_json("{\"a\": \"\u{202e}b\"}\n"), "{\"a\": \"\\u202eb\"}\n");
        assert_eq!(escape_untrusted_json("\"\u{e0041}\""), "\"\\udb40\\udc41\"");
    }

    #[test]
    fn text_beyond_the_limit_is_cut_and_marked() {
        assert_eq!(escape_untrusted_within("abc", 3), "abc");
        assert_eq!(escape_untrusted_within("abcdef", 3), "abcd…");
        // Escapes are longer than the characters they replace; the limit holds for the result.
        assert!(escape_untrusted_within(&"\u{202e}".repeat(1000), 100).len() < 115);
    }
}
