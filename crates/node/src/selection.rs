//! Selects the instances of a query by their ids or by the beginnings of ids.
//!
//! An exact match has precedence: `VI_1` selects the instance `VI_1` if it exists, and otherwise every id that
//! begins with `VI_1`, such as `VI_10`.

/// The selected instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Empty to select all instances.
    patterns: Vec<Pattern>,
}

/// An id, or the beginning of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    /// Whether an instance has exactly this id.
    is_exact: bool,
}

impl Selection {
    /// Selects by `texts`, where `ids` are the existing instances. Without texts, all are selected.
    pub fn new<'a>(texts: &[String], ids: impl IntoIterator<Item = &'a str>) -> Self {
        let patterns = texts.iter().map(|text| Pattern { text: text.clone(), is_exact: false });
        let mut selection = Self { patterns: patterns.collect() };
        if !selection.patterns.is_empty() {
            ids.into_iter().for_each(|id| selection.notice(id));
        }
        selection
    }

    /// Reports that the instance `id` exists: a text that equals the id selects only this instance from now on.
    pub fn notice(&mut self, id: &str) {
        for pattern in self.patterns.iter_mut().filter(|pattern| pattern.text == id) {
            pattern.is_exact = true;
        }
    }

    /// Whether the instance `id` is selected.
    pub fn covers(&self, id: &str) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.covers(id))
    }

    /// The first text that selects none of `ids`.
    pub fn missing<'a>(&self, ids: &(impl Iterator<Item = &'a str> + Clone)) -> Option<&str> {
        let is_missing = |pattern: &&Pattern| !ids.clone().any(|id| pattern.covers(id));
        self.patterns.iter().find(is_missing).map(|pattern| pattern.text.as_str())
    }
}

impl Pattern {
    fn covers(&self, id: &str) -> bool {
        if self.is_exact { id == self.text } else { id.starts_with(&self.text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(texts: &[&str], ids: &[&str]) -> Selection {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        Selection::new(&texts, ids.iter().copied())
    }

    #[test]
    fn an_exact_id_does_not_select_ids_that_only_begin_with_it() {
        let ids = ["VI_1", "VI_10", "VI_2"];
        let selection = select(&["VI_1"], &ids);
        assert!(selection.covers("VI_1") && !selection.covers("VI_10"));
        let selection = select(&["VI_1", "VI_10"], &ids);
        assert!(selection.covers("VI_1") && selection.covers("VI_10") && !selection.covers("VI_2"));
    }

    #[test]
    fn a_prefix_selects_all_ids_that_begin_with_it_until_an_instance_has_exactly_this_id() {
        let mut selection = select(&["VI_1"], &["VI_10", "VI_11"]);
        assert!(selection.covers("VI_10") && selection.covers("VI_11"));
        selection.notice("VI_1");
        assert!(selection.covers("VI_1") && !selection.covers("VI_10"));
    }

    #[test]
    fn no_text_selects_all_instances_and_a_text_without_a_match_is_reported() {
        let ids = ["a", "b"];
        assert!(select(&[], &ids).covers("a"));
        assert_eq!(select(&["a", "x"], &ids).missing(&ids.iter().copied()), Some("x"));
        assert_eq!(select(&["a"], &ids).missing(&ids.iter().copied()), None);
    }
}
