// SPDX-License-Identifier: Apache-2.0
//! The terminal: raw mode and the alternate screen, which are left at the end, after a panic and while the process is
//! stopped.

use std::cell::Cell;
use std::io::{self, IsTerminal, Stdout, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::force_color_output;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui::layout::{Position, Rect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};

use super::view::Theme;
use crate::failure::{CommandError, ExitStatus};

/// The exit code after a panic: the same as Rust's for a panic in the main thread.
const PANIC_EXIT_CODE: i32 = 101;

/// Held while the terminal is written to, so that nothing is drawn after a panic has given it back.
static TERMINAL: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread holds [`TERMINAL`].
    static IS_WRITING: Cell<bool> = const { Cell::new(false) };
}

/// The terminal, in raw mode and on the alternate screen until this value is dropped.
pub(super) struct FullScreen {
    backend: CrosstermBackend<Stdout>,
    /// What the terminal shows; `None` if that is not known.
    shown: Option<ScreenFrame>,
}

/// The content of the terminal.
#[derive(Debug, PartialEq)]
pub(super) struct ScreenFrame {
    pub(super) buffer: Buffer,
    /// The place of the cursor; `None` if it is hidden.
    pub(super) cursor: Option<Position>,
}

impl FullScreen {
    /// Takes the terminal.
    pub(super) fn open(theme: Theme) -> Result<Self, CommandError> {
        check()?;
        // The terminal library does not print colours if NO_COLOR is set; `--color always` has precedence.
        force_color_output(theme.has_colors);
        leave_on_panic();
        let screen = Self { backend: CrosstermBackend::new(io::stdout()), shown: None };
        // ORDER: the value exists before the terminal is changed, so that an error gives it back.
        write(enter)?;
        Ok(screen)
    }

    /// The area of the screen.
    pub(super) fn area(&self) -> Result<Rect, CommandError> {
        let size = self.backend.size().map_err(|error| terminal_error(&error))?;
        Ok(Rect::new(0, 0, size.width, size.height))
    }

    /// Shows a frame: writes the differences to the frame before, and nothing if there are none.
    pub(super) fn show(&mut self, frame: ScreenFrame) -> Result<(), CommandError> {
        if self.shown.as_ref() == Some(&frame) {
            return Ok(());
        }
        let before = self.shown.take().filter(|shown| shown.buffer.area == frame.buffer.area);
        write(|| {
            let backend = &mut self.backend;
            let before = if let Some(before) = before {
                before.buffer
            } else {
                backend.clear()?;
                Buffer::empty(frame.buffer.area)
            };
            backend.draw(before.diff(&frame.buffer).into_iter())?;
            match frame.cursor {
                Some(cursor) => {
                    backend.set_cursor_position(cursor)?;
                    backend.show_cursor()?;
                }
                None => backend.hide_cursor()?,
            }
            Write::flush(backend)
        })?;
        self.shown = Some(frame);
        Ok(())
    }

    /// Takes the terminal again after its mode or its content may have changed; the next frame is drawn as a whole.
    pub(super) fn retake(&mut self) -> Result<(), CommandError> {
        self.shown = None;
        write(enter)
    }

    /// Gives the terminal back and stops the process. Returns when the process is continued.
    pub(super) fn suspend(&mut self) -> Result<(), CommandError> {
        leave();
        // SIGSTOP and not SIGTSTP, which is blocked in this process.
        let stopped = kill_process(getpid(), Signal::STOP);
        stopped.map_err(|error| terminal_error(&error.into()))?;
        self.retake()
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        leave();
    }
}

/// Writes to the terminal. Waits for ever if another thread has panicked: the process is about to end.
fn write(act: impl FnOnce() -> io::Result<()>) -> Result<(), CommandError> {
    let _guard = lock();
    IS_WRITING.set(true);
    let result = act();
    IS_WRITING.set(false);
    result.map_err(|error| terminal_error(&error))
}

fn lock() -> MutexGuard<'static, ()> {
    TERMINAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The width and the height of the terminal of standard output; `None` if it is not a terminal.
pub(super) fn output_size() -> Option<(u16, u16)> {
    io::stdout().is_terminal().then(|| size().ok()).flatten()
}

/// Whether the terminal of standard input is gone, for example because the connection of ssh is lost.
pub(super) fn is_closed() -> bool {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::empty())];
    let ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let flags = polled[0].revents();
    ready.is_ok_and(|ready| ready > 0) && flags.intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Fails if there is no terminal that can show a screen.
fn check() -> Result<(), CommandError> {
    let failure = |message: &str| {
        let hint = "`vipwatch top --once` prints one frame, `vipwatch watch` prints each event";
        Err(CommandError::new(ExitStatus::Usage, message).hint(hint))
    };
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return failure("top needs a terminal for its input and its output");
    }
    match std::env::var("TERM").as_deref() {
        Ok("dumb") => failure("top cannot draw on this terminal: TERM is dumb"),
        _ => Ok(()),
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Gives the terminal back. Errors are ignored: the terminal may be gone.
fn leave() {
    let mut stdout = io::stdout();
    let _ = execute!(stdout, LeaveAlternateScreen, Show);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}

/// Has a panic in any thread give the terminal back, so that its message can be read, and end the process.
fn leave_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A thread that panics while it writes holds the lock.
        let _guard = (!IS_WRITING.get()).then(lock);
        leave();
        print(info);
        std::process::exit(PANIC_EXIT_CODE);
    }));
}

fn terminal_error(error: &io::Error) -> CommandError {
    CommandError::new(ExitStatus::No, format!("cannot use the terminal: {error}"))
}
