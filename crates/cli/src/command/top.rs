// SPDX-License-Identifier: Apache-2.0
//! `vipwatch top`: all instances on a live screen.
//!
//! ```text
//! thread "top-events"    reads the event stream, connects again      ─┐
//! thread "top-cluster"   reads the cluster after each change          ─┤
//! thread "top-requests"  reads the documents that a view needs       ─┤ bounded queue ──▶ main loop: model, then view
//! thread "top-keys"      reads the keyboard                          ─┤
//! thread "top-signals"   reads SIGTERM, SIGTSTP, SIGCONT             ─┘
//! ```
//!
//! The main loop draws at most ten frames per second, and only if a message has arrived or a second has passed. A frame
//! that equals the one before is not written, so that an idle screen sends nothing over the network.

mod feed;
mod input;
mod model;
mod node_data;
mod screen;
mod terminal;
mod update;
mod view;

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{ClusterState, EventId};
use vipwatch_linux::signal::{TerminalSignal, TerminalSignals};
use vipwatch_linux::worker::spawn_worker;

use self::model::{LoopStep, Model, TopMessage};
use self::node_data::{NodeDocuments, Request};
use self::terminal::{FullScreen, ScreenFrame};
use self::view::Theme;
use super::cluster::NodeFeed;
use crate::args::{ColorChoice, TopArgs};
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Style};

/// BOUND: maximum number of messages that wait for the main loop. The threads wait while the queue is full.
const QUEUE_LENGTH: usize = 1024;
/// Minimum time between two frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which ages on the screen are compared with the clock.
const TICK: Duration = Duration::from_secs(1);
/// Maximum time between a signal to stop and the end of the process.
const STOP_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The width of a printed frame without a terminal.
const DEFAULT_WIDTH: u16 = 100;
/// Maximum number of instances in a printed frame without a terminal.
const DEFAULT_ROWS: usize = 200;

pub(crate) fn run(options: &TopArgs) -> Result<(), CommandError> {
    let node = options.node.settings()?;
    let client = Client::new(&node.config.socket);
    let snapshot = match feed::snapshot(&client) {
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            return Err(error.into());
        }
        snapshot => snapshot?,
    };
    if options.once {
        let cluster = NodeFeed::new(client).next().ok();
        output::print(&printed_frame(options, snapshot, cluster, &Style::new()));
        return Ok(());
    }
    follow(options, &client, snapshot)
}

/// One frame as plain text.
fn printed_frame(
    options: &TopArgs,
    snapshot: NodeDocuments,
    cluster: Option<ClusterState>,
    clock: &Style,
) -> String {
    let mut model = Model::new(options, snapshot);
    model.data.cluster = cluster;
    model.arrange();
    let (width, height) = terminal::output_size().unzip();
    let wanted = view::overview_height(&model, DEFAULT_ROWS);
    let width = options.width.or(width).unwrap_or(DEFAULT_WIDTH).max(view::MIN_WIDTH);
    let height = options.height.or(height).unwrap_or(wanted).max(view::MIN_HEIGHT);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    view::draw(&mut model, clock, Theme { has_colors: false }, &mut buffer);
    view::plain_text(&buffer)
}

/// Shows the screen until the user ends it.
fn follow(options: &TopArgs, client: &Client, snapshot: NodeDocuments) -> Result<(), CommandError> {
    // ORDER: threads inherit blocked signals, so that they are blocked before the first thread starts.
    let signals = TerminalSignals::block().map_err(|error| start_error(&error))?;
    let theme = Theme { has_colors: has_colors(options.color) };
    let position = EventId { epoch: snapshot.status.epoch.clone(), seq: snapshot.status.seq };
    let mut model = Model::new(options, snapshot);
    let mut screen = FullScreen::open(theme)?;
    let (sender, queue) = sync_channel(QUEUE_LENGTH);
    let requests = start_threads(client, position, signals, &sender)?;
    let mut pace = FramePace { last: None, is_needed: true };
    loop {
        if let Some(request) = model.next_request() {
            // BOUND: one request; the model makes another one after its answer.
            let _ = requests.try_send(request);
        }
        if pace.wait().is_zero() {
            pace = FramePace { last: Some(Instant::now()), is_needed: false };
            screen.show(frame(&mut model, screen.area()?, theme))?;
        }
        let message = queue.recv_timeout(pace.wait());
        pace.is_needed = true;
        let flow = match message {
            Ok(message) => model.take(message)?,
            Err(RecvTimeoutError::Timeout) if terminal::is_closed() => LoopStep::Quit,
            Err(RecvTimeoutError::Timeout) => LoopStep::Continue,
            // The threads send for as long as the queue exists.
            Err(RecvTimeoutError::Disconnected) => LoopStep::Quit,
        };
        match flow {
            LoopStep::Continue => {}
            LoopStep::Redraw => screen.retake()?,
            LoopStep::Suspend => screen.suspend()?,
            LoopStep::Quit => return Ok(()),
        }
    }
}

/// When the next frame is drawn.
struct FramePace {
    /// When the last frame was drawn; `None` before the first one.
    last: Option<Instant>,
    /// Whether something may have changed since then.
    is_needed: bool,
}

impl FramePace {
    /// The time until the next frame.
    fn wait(&self) -> Duration {
        let interval = if self.is_needed { FRAME_INTERVAL } else { TICK };
        self.last.map_or(Duration::ZERO, |last| interval.saturating_sub(last.elapsed()))
    }
}

fn frame(model: &mut Model, area: Rect, theme: Theme) -> ScreenFrame {
    model.arrange();
    let mut buffer = Buffer::empty(area);
    let cursor = view::draw(model, &Style::new(), theme, &mut buffer);
    ScreenFrame { buffer, cursor }
}

/// Starts the threads, and returns the queue of requests.
fn start_threads(
    client: &Client,
    position: EventId,
    signals: TerminalSignals,
    queue: &SyncSender<TopMessage>,
) -> Result<SyncSender<Request>, CommandError> {
    let (requests, taken) = sync_channel(1);
    let (events, events_queue) = (client.clone(), queue.clone());
    let (reader, reader_queue) = (client.clone(), queue.clone());
    let (cluster, cluster_queue) = (client.clone(), queue.clone());
    let (signal_queue, keys_queue) = (queue.clone(), queue.clone());
    let started = [
        spawn_worker("top-events", move |_| feed::follow(&events, position, &events_queue)),
        spawn_worker("top-cluster", move |_| feed::follow_cluster(&cluster, &cluster_queue)),
        spawn_worker("top-requests", move |_| feed::read_requests(&reader, &taken, &reader_queue)),
        spawn_worker("top-signals", move |_| read_signals(&signals, &signal_queue)),
        spawn_worker("top-keys", move |_| read_keys(&keys_queue)),
    ];
    // The threads end with the process.
    started
        .into_iter()
        .try_for_each(|thread| thread.map(drop).map_err(|error| start_error(&error)))?;
    Ok(requests)
}

fn read_signals(signals: &TerminalSignals, queue: &SyncSender<TopMessage>) {
    loop {
        // A signal cannot end the wait early: all that could are blocked.
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], None);
        while let Some(signal) = signals.read() {
            if queue.send(TopMessage::Signal(signal)).is_err() {
                return;
            }
            if signal == TerminalSignal::Stop {
                end_after_timeout();
            }
        }
    }
}

/// Ends the process if the main loop does not: it may wait for a terminal that takes no output, for example that of a lost
/// ssh connection.
fn end_after_timeout() {
    let _ = poll(&mut [], Some(&STOP_TIMEOUT));
    std::process::exit(ExitStatus::No as i32);
}

fn read_keys(queue: &SyncSender<TopMessage>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) => TopMessage::Key(key),
            Ok(Event::Resize(..)) => TopMessage::Resized,
            Ok(_) => continue,
            Err(_) => TopMessage::TerminalClosed,
        };
        let is_last = matches!(message, TopMessage::TerminalClosed);
        if queue.send(message).is_err() || is_last {
            return;
        }
    }
}

/// Whether colours are used. See <https://no-color.org>.
fn has_colors(choice: ColorChoice) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}

fn start_error(error: &std::io::Error) -> CommandError {
    CommandError::new(ExitStatus::No, format!("cannot start top: {error}"))
}

#[cfg(test)]
mod tests;
