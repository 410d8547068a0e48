//! Demo.
use crate::{Stop, Task};
pub fn outside(_: &[&str]) -> Task {
    Err(Stop("later".to_owned()))
}
pub fn inside(_: &[&str]) -> Task {
    Err(Stop("later".to_owned()))
}
