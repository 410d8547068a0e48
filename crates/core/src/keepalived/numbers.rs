// SPDX-License-Identifier: Apache-2.0
//! Parses numbers and addresses with the rules of keepalived.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

/// How keepalived treats text after a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trailing {
    /// The number is invalid.
    Rejected,
    /// The number is valid, and the text is ignored.
    Ignored,
}

/// A number from `min` to `max`; `None` if it is invalid or out of range.
pub(super) fn number(text: &str, min: u64, max: u64, trailing: Trailing) -> Option<u64> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace());
    let digits = text.strip_prefix('+').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let is_whole = end == digits.len();
    // keepalived reads text without a digit as zero.
    let value = if end == 0 { 0 } else { digits[..end].parse().unwrap_or(u64::MAX) };
    let is_valid = is_whole || trailing == Trailing::Ignored;
    Some(value).filter(|value| is_valid && (min..=max).contains(value))
}

/// An advert interval: 10 ms to 255 s; `None` if invalid or out of range.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    micros(text).filter(|micros| (10_000..=255_000_000).contains(micros)).map(Duration::from_micros)
}

/// A delay in seconds; zero if invalid.
pub(super) fn delay(text: &str) -> Duration {
    Duration::from_micros(micros(text).unwrap_or_default())
}

/// Microseconds of a number of seconds with up to six decimal places.
fn micros(text: &str) -> Option<u64> {
    const PLACES: usize = 6;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_rounded_up = decimals.as_bytes().get(PLACES).is_some_and(|digit| *digit >= b'5');
    let kept = &decimals[..decimals.floor_char_boundary(PLACES)];
    let digits = format!("{whole}{kept}{}", "0".repeat(PLACES - kept.len()));
    let micros = number(&digits, 0, u64::MAX, Trailing::Ignored)?;
    Some(micros.saturating_add(u64::from(is_rounded_up))).filter(|_| !text.starts_with('-'))
}

/// Parses `IP` or `IP/LENGTH`. Without a length, or with one that is too long for the family, the longest
/// length applies.
pub(super) fn cidr(text: &str) -> Option<IpNet> {
    let longest: u8 = if text.contains(':') { 128 } else { 32 };
    let (ip, length) = match text.split_once('/') {
        None => (text, longest),
        Some((ip, length)) => {
            let length = number(length, 0, longest.into(), Trailing::Ignored);
            (ip, length.and_then(|length| u8::try_from(length).ok()).unwrap_or(longest))
        }
    };
    IpNet::new(ip.parse().ok()?, length).ok()
}

/// An address; a range or a prefix length after it is ignored.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    let end = text.find('-').or_else(|| text.find('/')).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// A MAC address of six bytes, or of five, to which keepalived adds the virtual router id. `None` for an
/// address that keepalived rejects: one of VRRP's own range, or a multicast address.
pub(super) fn mac(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_suffix(':').filter(|text| text.split(':').count() == 5).unwrap_or(text);
    let byte = |text: &str| u8::from_str_radix(text, 16).ok().filter(|_| text.len() <= 2);
    let bytes: Vec<u8> = text.split(':').map(byte).collect::<Option<_>>()?;
    let is_vrrp = matches!(bytes.as_slice(), [0, 0, 0x5e, 0, 1 | 2, ..]);
    let is_valid = (5..=6).contains(&bytes.len()) && bytes[0] & 1 == 0 && !is_vrrp;
    is_valid.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_after_a_number_is_rejected_or_ignored() {
        assert_eq!(number("51", 1, 255, Trailing::Rejected), Some(51));
        assert_eq!(number("51x", 1, 255, Trailing::Rejected), None);
        assert_eq!(number("24x", 0, 32, Trailing::Ignored), Some(24));
        assert_eq!(number("256", 1, 255, Trailing::Ignored), None);
        assert_eq!(number("-1", 0, 255, Trailing::Rejected), None);
    }

    #[test]
    fn seconds_have_decimal_places() {
        assert_eq!(seconds("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(seconds("3"), Some(Duration::from_secs(3)));
        assert_eq!(seconds("0"), None);
        assert_eq!(seconds("1s"), None);
    }

    #[test]
    fn an_invalid_prefix_length_becomes_the_longest() {
        assert_eq!(cidr("10.0.0.1/33").unwrap().to_string(), "10.0.0.1/32");
        assert_eq!(cidr("10.0.0.1/").unwrap().to_string(), "10.0.0.1/0");
        assert_eq!(cidr("fd00::1").unwrap().to_string(), "fd00::1/128");
        assert_eq!(cidr("10.0.0.300"), None);
    }

    #[test]
    fn a_mac_address_may_have_five_bytes() {
        assert_eq!(mac("02:0:0:0:0:1").unwrap().len(), 6);
        assert_eq!(mac("02:00:00:00:00").unwrap().len(), 5);
        assert_eq!(mac("02:00:00:00:00:").unwrap().len(), 5);
        assert_eq!(mac("01:00:00:00:00:01"), None);
        assert_eq!(mac("00:00:5e:00:01:33"), None);
        assert_eq!(mac("x:y"), None);
    }
}
