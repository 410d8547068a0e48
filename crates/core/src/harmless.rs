//! What comes from outside, without what could speak to a terminal or begin another line.

/// `text` with a mark in the place of each control character.
pub fn harmless(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_marked_and_the_rest_stays() {
        assert_eq!(harmless("a\u{1b}[2J\r\n é"), "a\u{fffd}[2J\u{fffd}\u{fffd} é");
    }
}
