// SPDX-License-Identifier: Apache-2.0
//! Checks before the runs that the kernel allows enough inotify instances. A node that cannot create one does not see
//! changed files, and its answers would be judged as wrong.

use crate::{FaultsError, LabResult};

/// The inotify instances of one lab: three nodes with three each. A node uses two at present.
const INSTANCES_PER_LAB: usize = 9;
/// The inotify instances that are left for other programs of the same user.
const RESERVED: usize = 20;

/// The file with the greatest number of inotify instances that one user may have.
const LIMIT_FILE: &str = "/proc/sys/fs/inotify/max_user_instances";

/// Fails if the kernel does not allow the inotify instances of so many labs at the same time.
pub fn check_limit(labs: usize) -> LabResult {
    let error = |error: String| FaultsError(format!("cannot read {LIMIT_FILE}: {error}"));
    let text = std::fs::read_to_string(LIMIT_FILE);
    let text = text.map_err(|failed| error(failed.to_string()))?;
    let limit = text.trim().parse().map_err(|_| error(format!("{text:?} is no number")))?;
    check(limit, labs)
}

fn check(limit: usize, labs: usize) -> LabResult {
    let wanted = labs * INSTANCES_PER_LAB + RESERVED;
    if limit >= wanted {
        return Ok(());
    }
    let now = match limit.saturating_sub(RESERVED) / INSTANCES_PER_LAB {
        0 => "no lab can run with the present value".to_owned(),
        largest => format!("the largest number that works now is --jobs {largest}"),
    };
    Err(FaultsError(format!(
        "{labs} labs at the same time need fs.inotify.max_user_instances={wanted}, and its value is {limit}\n  \
         hint: run `sysctl -w fs.inotify.max_user_instances={wanted}` as root; {now}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_the_kernel_is_enough_for_twelve_labs() {
        assert!(check(128, 12).is_ok());
        assert!(check(128, 13).is_err());
        assert!(check(4096, 60).is_ok());
    }

    #[test]
    fn the_error_names_the_command_and_the_largest_number_of_jobs() {
        let message =
            |limit, labs| check(limit, labs).err().map(|error| error.0).unwrap_or_default();
        let text = message(128, 60);
        assert!(text.contains("`sysctl -w fs.inotify.max_user_instances=560`"), "{text}");
        assert!(text.ends_with("works now is --jobs 12"), "{text}");
        assert!(message(20, 1).ends_with("no lab can run with the present value"));
    }
}
