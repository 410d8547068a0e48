// SPDX-License-Identifier: Apache-2.0
//! Reads the advertisement interval from keepalived's configuration. Neutron's agent waits for this time before it
//! accepts a primary, so reports must take it into account. The drop-in reads nothing else from that file.

use std::path::Path;
use std::time::Duration;

use vipwatch_linux::file::read_head;

/// Number of bytes that are read. The interval is before all addresses; the rest of the file is long on routers with
/// thousands of floating addresses.
const READ_BYTES: u64 = 16 << 10;

/// `advert_int` of the first instance in `file`; `None` if the file cannot be read or does not contain it.
pub fn advert_interval(file: &Path) -> Option<Duration> {
    let text = read_head(file, READ_BYTES).ok()?;
    parse(&String::from_utf8_lossy(&text))
}

fn parse(text: &str) -> Option<Duration> {
    text.lines().find_map(|line| {
        let code = line.split(['#', '!']).next().unwrap_or_default();
        let mut words = code.split_whitespace();
        let seconds: f64 =
            words.find(|word| *word == "advert_int").and_then(|_| words.next())?.parse().ok()?;
        // keepalived accepts 0.01 to 255 seconds (RFC 5798: 12 bits of centiseconds).
        (0.01..=255.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_found_in_a_configuration_of_neutron() {
        let text = "global_defs {\n    router_id neutron\n}\nvrrp_instance VR_1 {\n    state BACKUP\n    \
                    nopreempt\n    advert_int 2\n}\n";
        assert_eq!(parse(text), Some(Duration::from_secs(2)));
        assert_eq!(parse("advert_int 0.5"), Some(Duration::from_millis(500)));
    }

    #[test]
    fn a_text_without_a_valid_interval_has_none() {
        for text in [
            "",
            "advert_int",
            "advert_int x",
            "# advert_int 3",
            "! advert_int 3",
            "advert_int 0",
            "advert_int 1e9",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
