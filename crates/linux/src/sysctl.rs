//! Settings of the network namespace that the calling thread is in.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Where the settings of IPv6 are; of the calling thread's own namespace, whoever mounted `/proc`.
const IPV6: &str = "/proc/sys/net/ipv6/conf";

/// The links that have settings of IPv6; none if the kernel has no IPv6.
pub fn ipv6_links() -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(IPV6) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Sets `net.ipv6.conf.LINK.KEY`.
pub fn set_ipv6(link: &str, key: &str, value: u8) -> io::Result<()> {
    let path = Path::new(IPV6).join(link).join(key);
    OpenOptions::new().write(true).open(path)?.write_all(value.to_string().as_bytes())
}
