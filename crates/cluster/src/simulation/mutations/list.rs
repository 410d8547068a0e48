// SPDX-License-Identifier: Apache-2.0
//! Deliberate defects of the product, each of which the simulation must find. A mutation replaces one text in a copy of the
//! source, as `cargo xtask faults --mutations` does; `examples/simulation_mutations.rs` builds and runs them.

use std::path::{Path, PathBuf};

/// A deliberate defect.
pub(crate) struct Mutation {
    pub(crate) name: &'static str,
    /// The file below `crates/cluster/src`.
    pub(crate) file: &'static str,
    /// A text that the file has once; `new` replaces it.
    pub(crate) old: &'static str,
    pub(crate) new: &'static str,
    /// The faults that reveal it; empty for the usual ones.
    pub(crate) faults: &'static str,
}

const fn mutation(
    name: &'static str,
    file: &'static str,
    old: &'static str,
    new: &'static str,
) -> Mutation {
    Mutation { name, file, old, new, faults: "" }
}

impl Mutation {
    /// The same with the faults that reveal it.
    const fn with(self, faults: &'static str) -> Self {
        Self { faults, ..self }
    }
}

/// The comparison of etcd with what this process has written.
const OWN_EVIDENCE: &str =
    "let Some(registration) = &self.registration else { return Ok(()) };\n        match self";
const WITHOUT_EVIDENCE: &str = "let Some(registration) = self.registration.as_ref().filter(|_| position.revision < 0) else { return Ok(()) };\n        match self";

/// All mutations.
pub(crate) const MUTATIONS: [Mutation; 21] = [
    mutation(
        "position-after-a-part-of-a-revision",
        "follow.rs",
        "*next = (*next).max(revision);",
        "*next = (*next).max(revision + 1);",
    )
    .with("watch-broken,all-interfaces-down,adverts-cut"),
    mutation(
        "compaction-not-noticed",
        "etcd/watch.rs",
        "if answer.compact_revision > 0 {",
        "if answer.compact_revision < 0 {",
    ),
    mutation(
        "old-event-wins",
        "view.rs",
        "if self.known_revision(key.as_ref(), &text, trust) >= mod_revision {",
        "if self.known_revision(key.as_ref(), &text, trust) == mod_revision {",
    )
    .with("watch-repeated,watch-broken,etcd-cut,keepalived-stopped,adverts-cut"),
    mutation(
        "deletion-not-remembered",
        "view.rs",
        "let was_ignored = self.gone.insert(text, mod_revision, GoneReason::Deleted);",
        "let was_ignored = false;",
    )
    .with("watch-repeated,all-interfaces-down,adverts-cut,node-stopped"),
    mutation(
        "missing-keys-stay-after-a-read",
        "view.rs",
        "if mod_revision <= revision && !present.contains(&key) {",
        "if mod_revision < 0 && !present.contains(&key) {",
    ),
    mutation(
        "failed-write-not-repeated",
        "session/write.rs",
        "self.published.failed(batch);\n                    return Err(error);",
        "return Err(error);",
    ),
    mutation("roles-keep-their-lease", "session/write.rs", "self.published.compare_all();", "")
        .with("membership-deleted,node-killed,etcd-cut"),
    mutation("roles-not-published-again", "session/worker.rs", "self.published.forget_etcd();", ""),
    // The evidence of the node's own writes is not looked at, as after each of three losses of data.
    mutation("restored-data-not-noticed", "session/worker.rs", OWN_EVIDENCE, WITHOUT_EVIDENCE)
        .with("restored-passed,keepalived-stopped,interface-down"),
    mutation(
        "restored-data-of-a-late-node-not-noticed",
        "session/worker.rs",
        OWN_EVIDENCE,
        WITHOUT_EVIDENCE,
    )
    .with("restored-passed,etcd-cut,keepalived-stopped"),
    mutation("emptied-data-not-noticed", "session/worker.rs", OWN_EVIDENCE, WITHOUT_EVIDENCE)
        .with("emptied-passed,etcd-cut,keepalived-stopped"),
    mutation(
        "nothing-read-again-after-a-lost-lease",
        "session/worker.rs",
        "self.follower.read_again(&ranges);",
        "",
    )
    .with("emptied-passed,restored-passed,etcd-cut"),
    mutation(
        "silence-hides-findings-about-others",
        "view/silence.rs",
        "silences?.into_iter().min_by_key(|silence| silence.until)",
        "nodes.iter().filter_map(of_node).min_by_key(|silence| silence.until)",
    )
    .with("node-silenced,node-killed,all-interfaces-down,adverts-cut"),
    mutation(
        "reporter-not-fenced",
        "session/reporter.rs",
        "compares: vec![Compare::create_revision_is(&reporter, self.create_revision)],",
        "compares: Vec::new(),",
    ),
    mutation(
        "findings-not-continued",
        "session/reporter.rs",
        "evaluator: Evaluator::new(settings.clone(), node, Some(connected), open),",
        "evaluator: Evaluator::new(settings.clone(), node, Some(connected), Vec::new()),",
    ),
    mutation("open-finding-stays-in-etcd", "session/reporter.rs", "batch.delete(open);", ""),
    mutation("delivery-not-written", "session/reporter.rs", "list.push(target);", ""),
    mutation(
        "no-settle-time",
        "findings.rs",
        "let is_evaluated = due <= now && is_certain;",
        "let is_evaluated = is_certain;",
    ),
    mutation(
        "pending-condition-not-scheduled",
        "findings.rs",
        "if due > now {\n                self.schedule.add(due, &group.bucket);",
        "if due > now + self.settings.slow_settle {\n                self.schedule.add(due, &group.bucket);",
    ),
    mutation(
        "claims-need-no-confirmation",
        "group.rs",
        "claim.has_confirmed(newest) && other.has_confirmed(newest)",
        "newest > 0",
    ),
    mutation(
        "lost-node-is-no-primary",
        "group.rs",
        "member.is_live() && matches!(member.record.role, RoleKind::Backup | RoleKind::Fault)",
        "matches!(member.record.role, RoleKind::Backup | RoleKind::Fault)",
    ),
];

impl Mutation {
    /// The mutated text of the file below a directory of sources.
    pub(crate) fn apply(&self, source: &Path) -> (PathBuf, String, String) {
        let path = source.join(self.file);
        let text = std::fs::read_to_string(&path).unwrap();
        let count = text.matches(self.old).count();
        assert_eq!(count, 1, "{}: {} has {:?} {count} times", self.name, self.file, self.old);
        let mutated = text.replace(self.old, self.new);
        (path, text, mutated)
    }
}
