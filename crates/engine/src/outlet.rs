//! Where a transition goes. An outlet never makes its caller wait, and looks after its own
//! retries: it says when it wants the time (`due`) and is given it (`tick`).

pub mod agent;
pub mod announce;
pub mod conntrack;
pub mod state_file;
