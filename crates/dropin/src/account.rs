// SPDX-License-Identifier: Apache-2.0
//! Finds the users and groups that the command line names.

use vipwatch_linux::account::{AccountKind, id};

use crate::failure::{Code, Failure};

/// The id of the user called `name`, or `name` itself if it is a number.
pub(crate) fn user(name: &str) -> Result<u32, Failure> {
    find(name, AccountKind::User)
}

/// The id of the group called `name`, or `name` itself if it is a number.
pub(crate) fn group(name: &str) -> Result<u32, Failure> {
    find(name, AccountKind::Group)
}

fn find(name: &str, kind: AccountKind) -> Result<u32, Failure> {
    id(name, kind).ok_or_else(|| {
        let (kind, file) = (kind.word(), kind.file());
        let message = format!("unknown {kind} {name:?}: not in {file}");
        Failure::new(Code::Environment, message)
            .hint(format!("give the numeric id to use a {kind} from another directory service"))
    })
}
