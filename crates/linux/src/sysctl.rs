// SPDX-License-Identifier: Apache-2.0
//! IPv6 settings (`sysctl`) of the network namespace of the calling thread.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// The directory of the IPv6 settings. It shows those of the calling thread's namespace, in every mount of `/proc`.
const IPV6: &str = "/proc/sys/net/ipv6/conf";

/// The names in the directory of IPv6 settings: the links, `all` and `default`. Empty if the kernel has no IPv6.
pub fn ipv6_links() -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(IPV6) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Sets `net.ipv6.conf.LINK.KEY` to `value`.
pub fn set_ipv6(link: &str, key: &str, value: u8) -> io::Result<()> {
    let path = Path::new(IPV6).join(link).join(key);
    OpenOptions::new().write(true).open(path)?.write_all(value.to_string().as_bytes())
}
