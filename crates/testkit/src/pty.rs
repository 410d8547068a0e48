// SPDX-License-Identifier: Apache-2.0
//! A program on a pseudo-terminal, and its screen as a terminal would show it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::monitor::end_of;
use crate::wait::wait_showing;

/// A process with a pseudo-terminal as its controlling terminal. It is killed when this value is dropped.
pub struct PtyProcess {
    child: Child,
    /// The end of the pseudo-terminal that belongs to the terminal; `None` after [`Self::hang_up`].
    terminal: Option<File>,
    parser: vt100::Parser,
    /// All bytes that the program has written.
    written: Vec<u8>,
}

impl std::fmt::Debug for PtyProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PtyProcess").field("child", &self.child).finish_non_exhaustive()
    }
}

impl PtyProcess {
    /// Starts `command` on a terminal of this size, with `TERM=xterm-256color` unless the command sets it.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let terminal = terminal.expect("open a pseudo-terminal");
        grantpt(&terminal).expect("grantpt");
        unlockpt(&terminal).expect("unlockpt");
        set_size(&terminal, columns, rows);
        let name = ptsname(&terminal, Vec::new()).expect("ptsname");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let other_end = open(&name, flags, Mode::empty()).expect("open the other end");
        // `setsid` executes the program itself, so that the pid is that of the program.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        session.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        let end = || other_end.try_clone().expect("copy a descriptor");
        session.stdin(end()).stdout(end()).stderr(end());
        let child = session.spawn().expect("start setsid, of the package util-linux");
        let is_set =
            fcntl_getfl(&terminal).and_then(|f| fcntl_setfl(&terminal, f | OFlags::NONBLOCK));
        is_set.expect("make the terminal non-blocking");
        let parser = vt100::Parser::new(rows, columns, 0);
        Self { child, terminal: Some(File::from(terminal)), parser, written: Vec::new() }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads what the program has written, and returns the screen.
    pub fn screen(&mut self) -> &vt100::Screen {
        let mut bytes = [0; 4096];
        while let Some(terminal) = &mut self.terminal {
            match terminal.read(&mut bytes) {
                Ok(0) => break,
                Ok(length) => {
                    self.written.extend_from_slice(&bytes[..length]);
                    self.parser.process(&bytes[..length]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // WouldBlock: no more output yet. EIO: the program has ended.
                Err(_) => break,
            }
        }
        self.parser.screen()
    }

    /// The characters of the screen, one line for each row.
    pub fn text(&mut self) -> String {
        let screen = self.screen();
        let (_, columns) = screen.size();
        let lines = screen.rows(0, columns).map(|line| format!("{}\n", line.trim_end()));
        lines.collect()
    }

    /// All bytes that the program has written until now.
    pub fn written(&mut self) -> &[u8] {
        self.screen();
        &self.written
    }

    /// Waits until the text of the screen meets a condition, and returns the text.
    #[track_caller]
    pub fn wait_for_text(&mut self, what: &str, is_met: impl Fn(&str) -> bool) -> String {
        let this = std::cell::RefCell::new(self);
        let shown = || this.borrow_mut().text();
        wait_showing(what, shown, || Some(this.borrow_mut().text()).filter(|text| is_met(text)))
    }

    /// Waits until the screen contains `text`.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        self.wait_for_text(text, |screen| screen.contains(text))
    }

    /// Sends keys.
    pub fn press(&mut self, keys: &str) {
        let terminal = self.terminal.as_mut().expect("the terminal exists");
        terminal.write_all(keys.as_bytes()).expect("write to the terminal");
    }

    /// Gives the terminal another size.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        self.screen();
        self.parser.screen_mut().set_size(rows, columns);
        set_size(self.terminal.as_ref().expect("the terminal exists"), columns, rows);
    }

    /// Closes the terminal, as a lost connection of ssh does.
    pub fn hang_up(&mut self) {
        self.terminal = None;
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        let end = end_of(&mut self.child);
        self.screen();
        end.expect("the process ends")
    }
}

fn set_size(terminal: impl std::os::fd::AsFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("set the size of the terminal");
}

impl Drop for PtyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
