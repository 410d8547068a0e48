// SPDX-License-Identifier: Apache-2.0
//! Numbers and texts in few bytes, written and read in the same order. The bytes never leave the process.

use std::borrow::Cow;

/// Writes values one after the other.
#[derive(Debug, Default)]
pub(super) struct ByteWriter(Vec<u8>);

impl ByteWriter {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Seven bits in each byte, the lowest first; the eighth bit says that more follow.
    pub(super) fn unsigned(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(low_bits(number) | 0x80);
            number >>= 7;
        }
        self.byte(low_bits(number));
    }

    /// A number of small magnitude has few bytes: 0, -1, 1, -2 become 0, 1, 2, 3.
    pub(super) fn signed(&mut self, number: i64) {
        self.unsigned((number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned());
    }

    /// A text, without its end if that is `model`: twice the number of bytes, plus 1 if the model follows them.
    pub(super) fn text_like(&mut self, text: &str, model: &str) {
        let start = if model.is_empty() { None } else { text.strip_suffix(model) };
        let written = start.unwrap_or(text);
        self.unsigned((size(written.len()) << 1) | u64::from(start.is_some()));
        self.bytes(written.as_bytes());
    }

    /// The number of a word, from 1; or 0 and a text.
    pub(super) fn word(&mut self, word: &str, words: &[&str]) {
        let position = words.iter().position(|known| *known == word);
        self.unsigned(position.map_or(0, |position| size(position) + 1));
        if position.is_none() {
            self.text_like(word, "");
        }
    }

    /// The number of a start, from 1, if the text is that start and the model; or 0 and a text.
    pub(super) fn composed(&mut self, text: &str, starts: &[&str], model: &str) {
        let start = text.strip_suffix(model).unwrap_or_default();
        let position = starts.iter().position(|known| *known == start);
        self.unsigned(position.map_or(0, |position| size(position) + 1));
        if position.is_none() {
            self.text_like(text, model);
        }
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.unsigned(size(items.len()));
        for item in items {
            write(self, item);
        }
    }
}

fn low_bits(number: u64) -> u8 {
    number.to_le_bytes()[0] & 0x7F
}

fn size(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Reads what a [`ByteWriter`] has written. `None` means that the bytes are not those of a writer.
#[derive(Debug)]
pub(super) struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes that were not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    pub(super) fn slice(&mut self, length: u64) -> Option<&'a [u8]> {
        let (slice, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(slice)
    }

    pub(super) fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn signed(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        let sign = (number & 1).cast_signed().wrapping_neg();
        Some((number >> 1).cast_signed() ^ sign)
    }

    pub(super) fn text_like<'b>(&mut self, model: &'b str) -> Option<Cow<'b, str>>
    where
        'a: 'b,
    {
        let head = self.unsigned()?;
        let written = std::str::from_utf8(self.slice(head >> 1)?).ok()?;
        if head & 1 == 0 {
            return Some(Cow::Borrowed(written));
        }
        if written.is_empty() {
            return Some(Cow::Borrowed(model));
        }
        Some(Cow::Owned(format!("{written}{model}")))
    }

    pub(super) fn word(&mut self, words: &[&str]) -> Option<String> {
        match usize::try_from(self.unsigned()?).ok()?.checked_sub(1) {
            None => Some(self.text_like("")?.into_owned()),
            Some(position) => Some((*words.get(position)?).to_owned()),
        }
    }

    pub(super) fn composed(&mut self, starts: &[&str], model: &str) -> Option<String> {
        match usize::try_from(self.unsigned()?).ok()?.checked_sub(1) {
            None => Some(self.text_like(model)?.into_owned()),
            Some(position) => Some(format!("{}{model}", starts.get(position)?)),
        }
    }

    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let length = self.unsigned()?;
        (0..length).map(|_| read(self)).collect()
    }
}
