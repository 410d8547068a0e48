//! The state of the screen, and how messages change it.

use ratatui::crossterm::event::KeyEvent;
use vipwatch_api::{NodeEvent, NodeStatus, Timestamp};
use vipwatch_linux::signal::TerminalSignal;

use super::input::{self, KeyEffect};
use super::node_data::{Answer, NodeData, Request, Snapshot};
use super::screen::{Screen, View};
use crate::args::TopArgs;
use crate::failure::CommandError;

/// What the threads of the command report to the main loop.
#[derive(Debug)]
pub(super) enum Message {
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has another size, or its content is lost.
    Resized,
    /// The process received a signal.
    Signal(TerminalSignal),
    /// The terminal is gone.
    TerminalClosed,
    /// A connection has begun.
    Connected(Box<Snapshot>),
    /// The status of the node, which is read regularly.
    Status(Box<NodeStatus>),
    /// An event of the node.
    Event(Box<NodeEvent>),
    /// The connection is lost; another one will begin.
    Lost {
        /// When it was lost.
        at: Timestamp,
        /// Why.
        reason: String,
    },
    /// The connection is lost, and there will be no other.
    Failed(CommandError),
    /// The answer to a request.
    Answer(Box<Answer>),
}

/// What the main loop does after a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Draws, if something has changed.
    Continue,
    /// Draws everything.
    Redraw,
    /// Gives the terminal back, and stops the process until it is continued.
    Suspend,
    /// Ends the command.
    Quit,
}

/// The data of the node and the choices of the user.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) data: NodeData,
    pub(super) screen: Screen,
    /// Whether the rows must be selected and sorted again.
    needs_arrangement: bool,
    /// Whether the answer to a request is outstanding.
    is_waiting: bool,
}

impl Model {
    pub(super) fn new(options: &TopArgs, snapshot: Snapshot) -> Self {
        let (data, screen) = (NodeData::new(snapshot), Screen::new(options));
        Self { data, screen, needs_arrangement: true, is_waiting: false }
    }

    /// Takes a message.
    pub(super) fn take(&mut self, message: Message) -> Result<Flow, CommandError> {
        match message {
            Message::Key(key) => return Ok(self.key(key)),
            Message::Resized | Message::Signal(TerminalSignal::Continue) => {
                return Ok(Flow::Redraw);
            }
            Message::Signal(TerminalSignal::Suspend) => return Ok(Flow::Suspend),
            Message::Signal(TerminalSignal::Stop) | Message::TerminalClosed => {
                return Ok(Flow::Quit);
            }
            Message::Connected(snapshot) => self.data.restart(*snapshot),
            Message::Status(status) => self.data.status(*status),
            Message::Event(event) => self.data.event(*event),
            Message::Lost { at, reason } => self.data.lose(at, reason),
            Message::Failed(error) => return Err(error),
            Message::Answer(answer) => {
                self.is_waiting = false;
                self.data.answer(*answer);
            }
        }
        self.needs_arrangement = true;
        Ok(Flow::Continue)
    }

    fn key(&mut self, key: KeyEvent) -> Flow {
        self.arrange();
        match input::press(&mut self.screen, &self.data, key) {
            KeyEffect::None => Flow::Continue,
            KeyEffect::Rearrange => {
                self.needs_arrangement = true;
                Flow::Continue
            }
            KeyEffect::OpenDetail => {
                self.open_detail();
                Flow::Continue
            }
            KeyEffect::Redraw => Flow::Redraw,
            KeyEffect::Suspend => Flow::Suspend,
            KeyEffect::Quit => Flow::Quit,
        }
    }

    fn open_detail(&mut self) {
        self.screen.view = View::Detail;
        self.screen.scroll = 0;
        let shown = self.data.detail.as_ref().map(|detail| &detail.instance.id);
        let is_known = shown == self.screen.detail.as_ref();
        if !is_known {
            self.data.detail = None;
        }
        self.data.detail_error = None;
        self.data.needs_detail = true;
    }

    /// Selects and sorts the rows, if that is needed.
    pub(super) fn arrange(&mut self) {
        if std::mem::take(&mut self.needs_arrangement) {
            self.screen.arrange(&self.data);
        }
    }

    /// The next document to read. Only one request is outstanding at any time.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        if self.is_waiting {
            return None;
        }
        let data = &mut self.data;
        let is_detail = self.screen.view == View::Detail;
        let request = if is_detail && std::mem::take(&mut data.needs_detail) {
            Request::Detail(self.screen.detail.clone()?)
        } else if std::mem::take(&mut data.has_unknown_instance) {
            Request::Instances
        } else if std::mem::take(&mut data.needs_history) {
            Request::History
        } else {
            return None;
        };
        self.is_waiting = true;
        Some(request)
    }
}
