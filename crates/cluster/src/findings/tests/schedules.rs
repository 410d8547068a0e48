// SPDX-License-Identifier: Apache-2.0
//! Random schedules of role changes.

use proptest::prelude::*;

use super::*;

/// A failover: how long both nodes hold the address, and how long until the next one, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Failover {
    to: usize,
    overlap_ms: u64,
    pause_ms: u64,
    /// Whether both nodes confirm while they overlap.
    is_confirmed: bool,
}

const NODES: [&str; 3] = ["a", "b", "c"];

fn failovers(overlap_ms: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Failover>> {
    // A failover changes the claimants twice. With pauses of five minutes, ten minutes have fewer than six changes.
    let one = (1..3_usize, overlap_ms, 300_000..900_000_u64, any::<bool>());
    let one = one.prop_map(|(to, overlap_ms, pause_ms, is_confirmed)| Failover {
        to,
        overlap_ms,
        pause_ms,
        is_confirmed,
    });
    proptest::collection::vec(one, 1..8)
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn overlaps_that_are_shorter_than_the_settle_time_are_not_found(failovers in failovers(0..3_999)) {
        let mut lab = Evaluation::new(&NODES);
        let mut primary = 0;
        for failover in failovers {
            let next = (primary + failover.to) % NODES.len();
            lab.cluster.role(NODES[next], Primary);
            if failover.is_confirmed {
                lab.confirm();
            }
            prop_assert_eq!(lab.pass(seconds(failover.overlap_ms)), [""; 0]);
            lab.role(NODES[primary], Backup);
            prop_assert_eq!(lab.pass(seconds(failover.pause_ms)), [""; 0]);
            primary = next;
        }
    }

    #[test]
    fn gaps_that_are_shorter_than_the_settle_time_are_not_found(failovers in failovers(0..6_999)) {
        let mut lab = Evaluation::new(&NODES);
        let mut primary = 0;
        for failover in failovers {
            let next = (primary + failover.to) % NODES.len();
            lab.role(NODES[primary], Backup);
            prop_assert_eq!(lab.pass(seconds(failover.overlap_ms)), [""; 0]);
            lab.role(NODES[next], Primary);
            prop_assert_eq!(lab.pass(seconds(failover.pause_ms)), [""; 0]);
            primary = next;
        }
    }

    #[test]
    fn a_split_that_is_longer_is_opened_once_and_closed_once(failovers in failovers(4_000..200_000)) {
        let mut lab = Evaluation::new(&NODES);
        let mut primary = 0;
        for failover in failovers {
            let next = (primary + failover.to) % NODES.len();
            lab.role(NODES[next], Primary);
            // Heartbeats during the split change nothing.
            let mut found = lab.pass(seconds(failover.overlap_ms));
            lab.confirm();
            found.extend(lab.evaluate());
            prop_assert_eq!(found, ["+two-primaries"]);
            lab.role(NODES[primary], Backup);
            prop_assert_eq!(lab.pass(seconds(failover.pause_ms)), ["-two-primaries"]);
            primary = next;
        }
    }

    #[test]
    fn evaluating_more_often_finds_the_same(
        steps in proptest::collection::vec((0..3_usize, 0..4_usize, 0..9_000_u64, any::<bool>()), 1..40),
    ) {
        let roles = [Primary, Backup, Fault, Partial];
        let mut seldom = Evaluation::new(&NODES);
        let mut often = Evaluation::new(&NODES);
        for (node, role, wait_ms, is_confirmed) in steps {
            for lab in [&mut seldom, &mut often] {
                lab.cluster.role(NODES[node], roles[role]);
                if is_confirmed {
                    lab.confirm();
                }
            }
            let expected = seldom.pass(seconds(wait_ms));
            let mut found = often.evaluate();
            for _ in 0..4 {
                found.extend(often.pass(seconds(wait_ms) / 4.0));
            }
            often.now = seldom.now;
            prop_assert_eq!(found, expected);
        }
    }
}
