// SPDX-License-Identifier: Apache-2.0
//! Causes as documents of the API and as rows of the history.

use vipwatch_api::{CauseItem, EvidenceItem};
use vipwatch_core::cause::Evidence;
use vipwatch_core::{Cause, CauseKind};
use vipwatch_history::CauseRecord;

/// The fields of a document; empty if the cause is not known yet.
pub(crate) fn cause_item(cause: Option<&Cause>) -> CauseItem {
    let Some(cause) = cause else { return CauseItem::default() };
    CauseItem {
        cause: Some(cause.kind.as_str().to_owned()),
        cause_text: Some(cause.to_string()),
        evidence: Some(Box::new(evidence_item(&cause.evidence))),
    }
}

/// The fields of a document, from the history. A row of a later release may have a cause that this one does not know.
pub(crate) fn recorded_cause_item(record: Option<&CauseRecord>) -> CauseItem {
    let Some(record) = record else { return CauseItem::default() };
    let known = recorded_cause(record);
    if known.is_some() {
        return cause_item(known.as_ref());
    }
    let word = Some(record.word.clone());
    CauseItem { cause: word.clone(), cause_text: word, evidence: None }
}

/// The row of a cause.
pub(crate) fn cause_record(cause: &Cause) -> CauseRecord {
    let evidence = serde_json::to_string(&evidence_item(&cause.evidence)).unwrap_or_default();
    CauseRecord { word: cause.kind.as_str().to_owned(), evidence }
}

/// The cause of a row; `None` for a word of a later release.
pub(crate) fn recorded_cause(record: &CauseRecord) -> Option<Cause> {
    let kind = record.word.parse::<CauseKind>().ok()?;
    let item: EvidenceItem = serde_json::from_str(&record.evidence).unwrap_or_default();
    Some(Cause { kind, evidence: evidence(item) })
}

fn evidence_item(evidence: &Evidence) -> EvidenceItem {
    EvidenceItem {
        peer: evidence.peer.map(|peer| peer.to_string()),
        peer_priority: evidence.peer_priority,
        peer_priority_before: evidence.peer_priority_before,
        own_priority: evidence.own_priority,
        own_priority_before: evidence.own_priority_before,
        silent_ms: evidence.silent_ms,
        pid: evidence.pid,
        program: evidence.program.as_deref().map(str::to_owned),
        signal: evidence.signal,
        exit_code: evidence.exit_code,
        before_ms: evidence.before_ms,
        inferred: evidence.is_inferred,
        unknown: evidence.unknown.map(|reason| reason.to_string()),
    }
}

fn evidence(item: EvidenceItem) -> Evidence {
    Evidence {
        peer: item.peer.and_then(|peer| peer.parse().ok()),
        peer_priority: item.peer_priority,
        peer_priority_before: item.peer_priority_before,
        own_priority: item.own_priority,
        own_priority_before: item.own_priority_before,
        silent_ms: item.silent_ms,
        pid: item.pid,
        program: item.program.map(Box::from),
        signal: item.signal,
        exit_code: item.exit_code,
        before_ms: item.before_ms,
        is_inferred: item.inferred,
        unknown: item.unknown.as_deref().and_then(|word| word.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_core::cause::UnknownReason;

    use super::*;

    #[test]
    fn a_cause_is_read_back_from_its_row() {
        let evidence = Evidence {
            peer: Some("2001:db8::1".parse().unwrap()),
            peer_priority: Some(150),
            silent_ms: Some(3_600),
            program: Some("ip".into()),
            is_inferred: true,
            ..Evidence::default()
        };
        let causes = [
            Cause { kind: CauseKind::PeerSilent, evidence },
            Cause::new(CauseKind::Start),
            Cause::unknown(UnknownReason::NotCaptured),
        ];
        for cause in causes {
            let record = cause_record(&cause);
            assert_eq!(recorded_cause(&record), Some(cause.clone()), "{record:?}");
            assert_eq!(recorded_cause_item(Some(&record)), cause_item(Some(&cause)));
        }
    }

    #[test]
    fn a_cause_of_a_later_release_is_shown_as_its_word() {
        let record = CauseRecord { word: "eclipse".to_owned(), evidence: "{".to_owned() };
        assert_eq!(recorded_cause_item(Some(&record)).cause_text.as_deref(), Some("eclipse"));
        assert_eq!(recorded_cause_item(None), CauseItem::default());
    }
}
