// SPDX-License-Identifier: Apache-2.0
//! Tests of the evaluator: each finding is opened after its time and closed, and normal operation opens none.

mod conditions;
mod continuation;
mod flapping;
mod limits;
mod neutron;
mod schedules;
mod silences;

use vipwatch_api::RoleKind;
use vipwatch_api::RoleKind::{Backup, Fault, Partial, Primary};

use super::*;
use crate::record::RoleRecord;
use crate::sample::{TestCluster, role_record, time, vrid_51};

/// A cluster with an evaluator, and a clock that the test sets.
struct Evaluation {
    cluster: TestCluster,
    evaluator: Evaluator,
    now: Duration,
}

impl Evaluation {
    /// The nodes run, and the first has the primary of VRID 51. The grace after the connection is over.
    fn new(nodes: &[&str]) -> Self {
        let mut cluster = TestCluster::new();
        for (index, node) in nodes.iter().enumerate() {
            cluster.start(node);
            cluster.role(node, if index == 0 { Primary } else { Backup });
        }
        let evaluator = new_evaluator([]);
        let mut evaluation = Self { cluster, evaluator, now: Duration::from_secs(1000) };
        assert_eq!(evaluation.evaluate(), [""; 0]);
        assert_eq!(evaluation.pass(20.0), [""; 0]);
        evaluation
    }

    /// Evaluates now. Returns the changes as words.
    fn evaluate(&mut self) -> Vec<String> {
        words(self.changes())
    }

    fn changes(&mut self) -> Vec<ClusterFindingChange> {
        let now = Moment::new(self.now);
        let at = time(i64::try_from(self.now.as_secs()).unwrap());
        self.evaluator.evaluate(&self.cluster.view, EvaluationTime { now, at })
    }

    /// Evaluates now, and whenever a check is due during this time.
    fn pass(&mut self, seconds: f64) -> Vec<String> {
        words(self.pass_changes(seconds))
    }

    fn pass_changes(&mut self, seconds: f64) -> Vec<ClusterFindingChange> {
        let end = self.now + Duration::from_secs_f64(seconds);
        let mut changes = self.changes();
        while let Some(next) = self.evaluator.next_check()
            && next <= Moment::new(end)
        {
            let next = next.since(Moment::new(Duration::ZERO));
            assert!(next > self.now, "the next check is not in the future");
            self.now = next;
            changes.extend(self.changes());
        }
        self.now = end;
        changes
    }

    /// The instance on a node takes a role, and all live nodes confirm.
    fn role(&mut self, node: &str, role: RoleKind) {
        self.cluster.role(node, role);
        self.confirm();
    }

    fn publish(&mut self, record: &RoleRecord) {
        self.cluster.publish(&vrid_51(), record);
    }

    fn confirm(&mut self) {
        let live = self.cluster.view.nodes().filter(|node| node.seen().is_some());
        let live: Vec<String> = live.map(|node| node.name.to_string()).collect();
        self.cluster.confirm(&live.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn new_evaluator(open: impl IntoIterator<Item = FindingRecord>) -> Evaluator {
    Evaluator::new(EvaluatorSettings::default(), &"a".parse().unwrap(), None, open)
}

/// `+` opened, `~` changed, `-` closed, with the name of the finding without its first part.
fn words(changes: Vec<ClusterFindingChange>) -> Vec<String> {
    let word = |change| match change {
        ClusterFindingChange::Opened(record) => format!("+{}", short(&record)),
        ClusterFindingChange::Changed(record) => format!("~{}", short(&record)),
        ClusterFindingChange::Found { record, .. } => format!("={}", short(&record)),
        ClusterFindingChange::Closed(record) => format!("-{}", short(&record)),
    };
    changes.into_iter().map(word).collect()
}

fn short(record: &FindingRecord) -> String {
    open::short_name(FindingKind::from_name(&record.name).unwrap()).to_owned()
}
