// SPDX-License-Identifier: Apache-2.0
//! Bearer tokens (RFC 6750): the file with the valid ones, and the comparison with that of a request.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;
use vipwatch_node::config::{FileContent, WebFile};

use super::file::{FileProblem, WebFileError};

/// Minimum length of a token in characters. A shorter one could be guessed.
pub(super) const MIN_LENGTH: usize = 16;
/// Maximum length of a token in characters.
pub(super) const MAX_LENGTH: usize = 512;
/// Maximum number of tokens, because each request is compared with all of them.
pub(super) const MAX_TOKENS: usize = 64;

const KEY: &str = "token_file";

/// A token. Its text is never printed.
#[derive(Clone)]
pub(crate) struct Token(Arc<[u8]>);

#[cfg(test)]
impl Token {
    pub(crate) fn for_test(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The valid tokens.
#[derive(Debug, Default)]
pub(crate) struct TokenSet(Vec<Token>);

impl TokenSet {
    /// Reads the tokens of a file. A file without a token is valid: it withdraws all tokens.
    pub(super) fn read(file: &WebFile) -> Result<Self, WebFileError> {
        let failed = |problem| WebFileError::new(KEY, file, problem);
        let text = file.read(FileContent::Secret).map_err(|error| failed(error.into()))?;
        Self::parse(&text).map_err(failed)
    }

    /// Parses one token on each line. `#` begins a comment, at the beginning of a line or after a space.
    fn parse(text: &str) -> Result<Self, FileProblem> {
        let mut tokens = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split_whitespace();
            let Some(token) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let is_last = words.next().is_none_or(|word| word.starts_with('#'));
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
            if !is_last || token.len() > MAX_LENGTH || !token.bytes().all(is_valid) {
                return Err(FileProblem::InvalidToken { line });
            }
            if token.len() < MIN_LENGTH {
                return Err(FileProblem::ShortToken { line });
            }
            if tokens.len() == MAX_TOKENS {
                return Err(FileProblem::TooManyTokens);
            }
            tokens.push(Token(token.as_bytes().into()));
        }
        Ok(Self(tokens))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn check_not_empty(&self, file: &WebFile) -> Result<(), WebFileError> {
        if self.is_empty() {
            return Err(WebFileError::new(KEY, file, FileProblem::NoToken));
        }
        Ok(())
    }

    /// The token of a request, if it is valid.
    pub(crate) fn of_request(&self, headers: &HeaderMap) -> Option<Token> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let (scheme, token) = value.as_bytes().split_at_checked(7)?;
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer ");
        self.find(token.trim_ascii()).filter(|_| is_bearer)
    }

    pub(super) fn contains(&self, token: &Token) -> bool {
        self.find(&token.0).is_some()
    }

    /// The token with these bytes. The time of the comparison depends on the length of the tokens only, so that it tells
    /// nothing about their characters. All of them are compared.
    fn find(&self, bytes: &[u8]) -> Option<Token> {
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.0.ct_eq(bytes)) {
                found = Some(token);
            }
        }
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn a_request_needs_exactly_one_valid_bearer_token() {
        let set = TokenSet::parse("# two\n0123456789abcdef\n\n fedcba9876543210 # Prometheus\n");
        let set = set.unwrap();
        let is_valid = |value: &str| set.of_request(&header(value)).is_some();
        assert!(is_valid("Bearer 0123456789abcdef") && is_valid("bearer  fedcba9876543210"));
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeX",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789ABCDEF",
            "Bearer 0123456789abcdef fedcba9876543210",
            "Basic 0123456789abcdef",
            "Digest 0123456789abcdef",
            "0123456789abcdef",
            "Bearer #",
            "Bearer Prometheus",
        ] {
            assert!(!is_valid(value), "{value:?}");
        }
        let mut twice = header("Bearer 0123456789abcdef");
        twice.append(header::AUTHORIZATION, "Bearer 0123456789abcdef".parse().unwrap());
        assert!(set.of_request(&twice).is_none());
        assert!(set.of_request(&HeaderMap::new()).is_none());
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number_and_not_shown() {
        let error = |text: &str| TokenSet::parse(text).unwrap_err().to_string();
        for (text, expected) in [
            ("0123456789abcdef\nshort-secret\n", "the token in line 2 has fewer than 16"),
            ("a secret with several words\n", "line 1 is not one token"),
            ("secret-with-ümlaut-in-it\n", "line 1 is not one token"),
            (&format!("{}\n", "s".repeat(513)), "line 1 is not one token"),
            (&"0123456789abcdef\n".repeat(65), "more than 64 tokens"),
        ] {
            let error = error(text);
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("secret") && !error.contains("sss"), "{error}");
        }
        let set = TokenSet::parse("0123456789abcdef\n").unwrap();
        assert!(!format!("{set:?}").contains("0123"));
    }
}
