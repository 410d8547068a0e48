//! Another configuration, while the node runs: nothing that is followed is dropped.

use std::sync::Arc;

use vipwatch_core::ErrorChain;
use vipwatch_linux::clock;
use vipwatch_receiver::ListenSource;

use super::Node;
use crate::config::{AgentConfig, Config};
use crate::receiver::{ReceiverService, ServiceContext};
use crate::service;
use crate::watch::follower::FollowerUpdate;

impl Node {
    /// Takes another configuration, if it is one; nothing that is followed is dropped.
    pub(super) fn reload(&mut self) {
        service::notify_reloading();
        match (self.reload)() {
            Ok(config) => self.apply(config),
            Err(error) => {
                let text = ErrorChain(&error).to_string();
                tracing::error!("the configuration is not taken, the one before stands: {text}");
                self.store.set_health("configuration", Some(text));
            }
        }
        service::notify("READY=1");
    }

    fn apply(&mut self, config: Config) {
        for (what, is_same) in [
            ("state_dir", config.state_dir == self.config.state_dir),
            ("socket", config.socket == self.config.socket),
            ("socket_group", config.group == self.config.group),
            ("listen", config.listen == self.config.listen),
            ("log", config.log == self.config.log),
            ("hooks_at_once", config.hooks_at_once == self.config.hooks_at_once),
            ("[history]", config.keep == self.config.keep),
        ] {
            if !is_same {
                tracing::warn!("{what} takes a restart to change");
            }
        }
        config.log_warnings();
        let configured = self.notifier.configure(config.rules.clone());
        if let Err(error) = configured {
            tracing::error!(%error, "the outlets cannot be had");
        }
        self.apply_agent(config.agent.as_ref(), ListenSource::New);
        self.audit_worker.set_every(config.audit_every);
        self.follower.redirect(config.places.clone(), config.instances.clone());
        self.config = Config {
            state_dir: self.config.state_dir.clone(),
            socket: self.config.socket.clone(),
            ..config
        };
        self.watch_agents();
        let news = self.follower.rediscover();
        // Also those that are as they were may be told elsewhere now.
        let instances = self.follower.instances().to_vec();
        let heard = clock::now();
        self.take(FollowerUpdate { instances: Some(instances), ..news }, heard);
        self.store.set_health("configuration", None);
        tracing::info!("the configuration was read again");
    }

    /// Opens, changes or closes the place where monitors report.
    pub(super) fn apply_agent(
        &mut self,
        config: Option<&AgentConfig>,
        listen_source: ListenSource,
    ) {
        let applied = match (&mut self.receiver, config) {
            (Some(receiver), Some(config)) if receiver.config() == config => return,
            (Some(receiver), Some(config)) => receiver.configure(config),
            (None, Some(_)) if self.closing.is_some() => {
                tracing::info!(
                    "the receiver before is still shutting down; the new one starts after it"
                );
                return;
            }
            (None, Some(config)) => {
                ReceiverService::open(config, &self.service_context(), listen_source)
                    .map(|receiver| self.receive(Some(receiver)))
            }
            (_, None) => {
                self.receive(None);
                Ok(())
            }
        };
        // What it is for goes on without.
        let why = applied.err().map(|error| ErrorChain(&error).to_string());
        if let Some(why) = &why {
            tracing::error!("[agent] is not taken: {why}");
        }
        self.store.set_health("agent", why);
    }

    /// From now on, monitors report to `receiver`, or to no receiver. The one before shuts down on a
    /// thread of its own: it waits some seconds for monitors and deliveries, and the loop does not.
    pub(super) fn receive(&mut self, receiver: Option<ReceiverService>) {
        self.receiver_handle.set(receiver.as_ref().map(ReceiverService::status));
        let before = std::mem::replace(&mut self.receiver, receiver);
        if let Some(closing) = before.and_then(ReceiverService::close) {
            self.closing = Some(closing);
        }
    }

    /// When a receiver has shut down, starts the one that the configuration asks for by now.
    pub(super) fn finish_closing(&mut self) {
        if self.closing.take_if(|closing| closing.has_ended()).is_some() {
            let agent = self.config.agent.clone();
            self.apply_agent(agent.as_ref(), ListenSource::New);
        }
    }

    /// For the end of the node: returns when no receiver runs any more.
    pub(super) fn close_receiver_and_wait(&mut self) {
        self.receive(None);
        if let Some(closing) = self.closing.take() {
            closing.wait();
        }
    }

    fn service_context(&self) -> ServiceContext {
        ServiceContext {
            state_dir: self.config.state_dir.clone(),
            node: Arc::clone(&self.name),
            hooks_at_once: self.config.hooks_at_once,
        }
    }
}
