// SPDX-License-Identifier: Apache-2.0
//! Answers without a node: reads the files of keepalived, the kernel and the history.

use std::cell::OnceCell;

use vipwatch_api::{
    FindingList, HistoryDocument, HistoryFilter, InstanceDetail, InstanceFilter, InstanceList,
    NodeStatus, ProblemDocument, Schema, TimelineItem,
};
use vipwatch_node::view::{self, ApiContext, HistoryPages, NodeExpectation};
use vipwatch_node::{Config, direct};

/// The files and the kernel. The kernel is read once, when the first answer needs it.
#[derive(Debug)]
pub(crate) struct KernelSource {
    config: Config,
    context: OnceCell<ApiContext>,
}

impl KernelSource {
    /// A source for the instances and the history of `config`.
    pub(crate) fn new(config: Config) -> Self {
        Self { config, context: OnceCell::new() }
    }

    fn context(&self) -> &ApiContext {
        self.context.get_or_init(|| direct::context(&self.config))
    }

    /// As `GET /v1/status`.
    pub(crate) fn status(&self) -> NodeStatus {
        view::status(self.context())
    }

    /// As `GET /v1/instances`.
    pub(crate) fn instances(
        &self,
        filter: &InstanceFilter,
    ) -> Result<InstanceList, ProblemDocument> {
        view::instances(self.context(), filter)
    }

    /// As `GET /v1/instances/{id}`.
    pub(crate) fn instance(&self, id: &str) -> Result<InstanceDetail, ProblemDocument> {
        view::instance(self.context(), id)
    }

    /// As `POST /v1/audit`. A node that is expected to run is a finding: it does not answer.
    pub(crate) fn audit(&self, expectation: NodeExpectation) -> FindingList {
        view::audit_now(self.context(), expectation)
    }

    /// The epoch of the history.
    pub(crate) fn epoch(&self) -> String {
        direct::history_context(&self.config).store.epoch().to_string()
    }

    /// As `GET /v1/history`: passes the entries to `take`, and returns the document without them. Does not read the
    /// kernel, unless an address selects the instance.
    pub(crate) fn history(
        &self,
        filter: &HistoryFilter,
        take: &mut dyn FnMut(TimelineItem),
    ) -> Result<HistoryDocument, ProblemDocument> {
        let mut filter = filter.clone();
        let address = filter.id.as_ref().filter(|id| id.parse::<std::net::IpAddr>().is_ok());
        if let Some(address) = address {
            filter.id = Some(self.instance(address)?.instance.id);
        }
        let context = direct::history_context(&self.config);
        let mut pages = HistoryPages::open(&context, &filter)?;
        loop {
            let page = pages.next_page().map_err(|error| view::history_problem(&error))?;
            if page.is_empty() {
                break;
            }
            page.into_iter().for_each(&mut *take);
        }
        Ok(HistoryDocument {
            schema: Schema::History,
            node: context.node.to_string(),
            epoch: context.store.epoch().to_string(),
            items: Vec::new(),
        })
    }
}
