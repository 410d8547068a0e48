// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster balance`: prints how the primaries are distributed over the nodes.

use vipwatch_api::{ClusterBalance, ClusterScope, PossibleMove, balance};

use super::basis::{push_basis, push_warning};
use super::source::ClusterReader;
use crate::args::{ClusterBalanceArgs, EtcdOptions};
use crate::failure::CommandError;
use crate::output::{self, Page, Style, TextTable, count, push_line};

/// Maximum number of groups that are printed; `-o wide` has no limit.
const MAX_MOVES: usize = 10;

pub(super) fn run(options: &ClusterBalanceArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let reader = ClusterReader::open(&options.query, etcd)?;
    let mut groups = reader.groups()?;
    if groups.basis.scope == ClusterScope::Own {
        let sentence = "this view has only the groups of the node's own instances, so the numbers of the other nodes are too small";
        groups.basis.unknown.push(sentence.to_owned());
    }
    let nodes = reader.nodes()?.items;
    output::show(&options.query.output, &balance(groups.basis, &nodes, &groups.items));
    Ok(())
}

impl Page for ClusterBalance {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_warning(&mut page, &self.basis, style);
        let head = ["NODE", "STATE", "PRIMARY", "BACKUP", "OTHER", "DIFFERENCE"];
        let mut table = TextTable::new(&head).shrink(&[("NODE", 20)]);
        for share in &self.items {
            table.row(vec![
                share.node.clone(),
                share.state.word().to_owned(),
                share.primaries.to_string(),
                share.backups.to_string(),
                share.others.to_string(),
                share.difference.map(|difference| format!("{difference:+.2}")).unwrap_or_default(),
            ]);
        }
        page.push_str(&table.text(style));
        match self.mean {
            Some(mean) => {
                push_line(&mut page, &format!("mean of the live nodes: {mean:.2} primaries"));
            }
            None => push_line(&mut page, "no node is live"),
        }
        push_moves(&mut page, &self.moves, style);
        push_basis(&mut page, &self.basis);
        page
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|share| share.node.clone()).collect()
    }
}

fn push_moves(page: &mut String, moves: &[PossibleMove], style: &Style) {
    if moves.is_empty() {
        push_line(page, "no move of a group would make the numbers more equal");
        return;
    }
    let groups = count(moves.len(), "group");
    page.push('\n');
    push_line(page, &format!("{groups} could move (information only, vipwatch moves nothing):"));
    let limit = if style.is_wide { usize::MAX } else { MAX_MOVES };
    let mut table = TextTable::new(&["GROUP", "FROM", "PRIORITY", "TO", "PRIORITY"]);
    for one in moves.iter().take(limit) {
        table.row(vec![
            one.group.clone(),
            one.from.clone(),
            one.from_priority.map(|priority| priority.to_string()).unwrap_or_default(),
            one.to.clone(),
            one.to_priority.to_string(),
        ]);
    }
    page.push_str(&table.text(style));
    if moves.len() > limit {
        push_line(page, &format!("and {} more (`-o wide` prints all)", moves.len() - limit));
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::cluster;

    #[test]
    fn the_page_has_the_numbers_of_each_node_and_the_groups_that_could_move() {
        let (nodes, groups) = (cluster::nodes(), cluster::many_groups(14));
        let answer = balance(groups.basis, &nodes.items, &groups.items);
        insta::assert_snapshot!(answer.text(&Style::of_tests()));
        insta::assert_snapshot!("balance_json", output::json_line(&answer));
        let wide = answer.text(&Style { is_wide: true, ..Style::of_tests() });
        assert!(!wide.contains("more ("), "{wide}");
    }

    #[test]
    fn an_equal_distribution_has_no_moves() {
        let (nodes, groups) = (cluster::nodes(), cluster::groups());
        let answer = balance(groups.basis, &nodes.items, &groups.items);
        let text = answer.text(&Style::of_tests());
        assert!(text.contains("\nno move of a group would"), "{text}");
    }
}
