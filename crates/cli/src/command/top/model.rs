// SPDX-License-Identifier: Apache-2.0
//! The state of the screen, and how messages change it.

use ratatui::crossterm::event::KeyEvent;
use vipwatch_api::{ClusterState, NodeEvent, NodeStatus, Timestamp};
use vipwatch_linux::signal::TerminalSignal;

use super::input::{self, KeyEffect};
use super::node_data::{Answer, NodeData, NodeDocuments, Request};
use super::screen::{ScreenState, View};
use crate::args::TopArgs;
use crate::failure::CommandError;

/// What the threads of the command report to the main loop.
#[derive(Debug)]
pub(super) enum TopMessage {
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has another size, or its content is lost.
    Resized,
    /// The process received a signal.
    Signal(TerminalSignal),
    /// The terminal is gone.
    TerminalClosed,
    /// A connection has begun.
    Connected(Box<NodeDocuments>),
    /// The status of the node, which is read regularly.
    Status(Box<NodeStatus>),
    /// The cluster, as the node sees it.
    Cluster(Box<ClusterState>),
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
pub(super) enum LoopStep {
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
    pub(super) screen: ScreenState,
    /// Whether the rows must be selected and sorted again.
    needs_arrangement: bool,
    /// Whether the answer to a request is outstanding.
    is_waiting: bool,
}

impl Model {
    pub(super) fn new(options: &TopArgs, snapshot: NodeDocuments) -> Self {
        let (data, screen) = (NodeData::new(snapshot), ScreenState::new(options));
        Self { data, screen, needs_arrangement: true, is_waiting: false }
    }

    /// Takes a message.
    pub(super) fn take(&mut self, message: TopMessage) -> Result<LoopStep, CommandError> {
        match message {
            TopMessage::Key(key) => return Ok(self.key(key)),
            TopMessage::Resized | TopMessage::Signal(TerminalSignal::Continue) => {
                return Ok(LoopStep::Redraw);
            }
            TopMessage::Signal(TerminalSignal::Suspend) => return Ok(LoopStep::Suspend),
            TopMessage::Signal(TerminalSignal::Stop) | TopMessage::TerminalClosed => {
                return Ok(LoopStep::Quit);
            }
            TopMessage::Connected(snapshot) => self.data.restart(*snapshot),
            TopMessage::Status(status) => self.data.status(*status),
            TopMessage::Cluster(cluster) => self.data.cluster = Some(*cluster),
            TopMessage::Event(event) => self.data.event(*event),
            TopMessage::Lost { at, reason } => self.data.lose(at, reason),
            TopMessage::Failed(error) => return Err(error),
            TopMessage::Answer(answer) => {
                self.is_waiting = false;
                self.data.answer(*answer);
            }
        }
        self.needs_arrangement = true;
        Ok(LoopStep::Continue)
    }

    fn key(&mut self, key: KeyEvent) -> LoopStep {
        self.arrange();
        match input::press(&mut self.screen, &self.data, key) {
            KeyEffect::None => LoopStep::Continue,
            KeyEffect::Rearrange => {
                self.needs_arrangement = true;
                LoopStep::Continue
            }
            KeyEffect::OpenDetail => {
                self.open_detail();
                LoopStep::Continue
            }
            KeyEffect::Redraw => LoopStep::Redraw,
            KeyEffect::Suspend => LoopStep::Suspend,
            KeyEffect::Quit => LoopStep::Quit,
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
