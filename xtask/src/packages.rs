// SPDX-License-Identifier: Apache-2.0
//! The suite `packages`: makes the packages for the tests of the crate `xtask/packages`, which run as root.

use std::path::PathBuf;

use crate::{TaskError, TaskResult, build, dist, provision};

/// The version of the packages from which the tests upgrade.
const PREVIOUS_VERSION: &str = "0.0.1";

/// Fetches what makes the packages, and makes the root of a clean system.
pub fn fetch(is_full: bool) -> TaskResult {
    if is_full {
        provision::programs(&[provision::RPMLINT, provision::QEMU])?;
    }
    provision::cargo_deb()?;
    provision::neutron("29.0.0")?;
    let _lock = provision::lock_cache()?;
    vipwatch_packages::archive(&vipwatch_packages::suite(), &roots()?);
    Ok(())
}

/// Makes the packages: those with debug builds, or with `is_full` everything that is shipped, twice, with the same bytes.
pub fn pack(is_full: bool) -> TaskResult {
    let [packages, previous] = directories()?;
    dist::quick(&previous, Some(PREVIOUS_VERSION))?;
    if is_full { dist::full(&packages) } else { dist::quick(&packages, None) }
}

/// The directories of the packages, and of those from which the tests upgrade.
fn directories() -> Result<[PathBuf; 2], TaskError> {
    let target = std::path::absolute(build::target_directory())?;
    Ok([target.join("packages"), target.join("packages-previous")])
}

/// The directory with the roots of clean systems.
fn roots() -> Result<PathBuf, TaskError> {
    Ok(provision::cache_directory()?.join("roots"))
}

/// The environment variables of the test programs.
pub fn environment() -> Result<Vec<(&'static str, PathBuf)>, TaskError> {
    let [packages, previous] = directories()?;
    Ok(vec![
        ("VIPWATCH_PACKAGES", packages),
        ("VIPWATCH_PREVIOUS", previous),
        ("VIPWATCH_ROOTS", roots()?),
        ("VIPWATCH_NEUTRON_29", provision::neutron("29.0.0")?),
    ])
}
