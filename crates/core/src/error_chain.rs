// SPDX-License-Identifier: Apache-2.0
//! Formats an error and its causes in one line, for logs and messages.

use std::error::Error;
use std::fmt;

/// Displays an error and all its causes, separated by `: `. A cause with the text of the error before it is left out.
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if text != last {
                write!(f, ": {text}")?;
            }
            last = text;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ErrorChain({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn a_cause_with_the_same_text_as_the_error_before_it_is_left_out() {
        let refused = Link("connection refused", None);
        let inner = Link("tcp connect error", Some(Box::new(refused)));
        let outer = Link("tcp connect error", Some(Box::new(inner)));
        let chain = Link("cannot connect", Some(Box::new(outer)));
        let text = ErrorChain(&chain).to_string();
        assert_eq!(text, "cannot connect: tcp connect error: connection refused");
    }
}
