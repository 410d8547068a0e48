//! Which instances a command is about, by ids or the beginnings of ids.
//!
//! An exact id comes first: `VI_1` selects the instance `VI_1` if there is one, and only otherwise
//! every instance whose id begins with `VI_1`, such as `VI_10`.

/// The instances that a question is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Empty for all instances.
    wanted: Vec<Wanted>,
}

/// One id, or the beginning of some.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    text: String,
    /// An instance has exactly this id.
    is_exact: bool,
}

impl Selection {
    /// What `texts` select among `ids`; every instance if there are no texts.
    pub fn new<'a>(texts: &[String], ids: impl IntoIterator<Item = &'a str>) -> Self {
        let wanted = texts.iter().map(|text| Wanted { text: text.clone(), is_exact: false });
        let mut selection = Self { wanted: wanted.collect() };
        if !selection.wanted.is_empty() {
            ids.into_iter().for_each(|id| selection.notice(id));
        }
        selection
    }

    /// An instance with this id exists: a text that equals it selects no other any more.
    pub fn notice(&mut self, id: &str) {
        for wanted in self.wanted.iter_mut().filter(|wanted| wanted.text == id) {
            wanted.is_exact = true;
        }
    }

    /// Whether the instance `id` is selected.
    pub fn covers(&self, id: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted.covers(id))
    }

    /// A text that selects none of `ids`.
    pub fn missing<'a>(&self, ids: &(impl Iterator<Item = &'a str> + Clone)) -> Option<&str> {
        let is_missing = |wanted: &&Wanted| !ids.clone().any(|id| wanted.covers(id));
        self.wanted.iter().find(is_missing).map(|wanted| wanted.text.as_str())
    }
}

impl Wanted {
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
    fn an_exact_id_selects_no_longer_one() {
        let ids = ["VI_1", "VI_10", "VI_2"];
        let selection = select(&["VI_1"], &ids);
        assert!(selection.covers("VI_1") && !selection.covers("VI_10"));
        let selection = select(&["VI_1", "VI_10"], &ids);
        assert!(selection.covers("VI_1") && selection.covers("VI_10") && !selection.covers("VI_2"));
    }

    #[test]
    fn the_beginning_of_ids_selects_them_until_an_instance_has_exactly_this_id() {
        let mut selection = select(&["VI_1"], &["VI_10", "VI_11"]);
        assert!(selection.covers("VI_10") && selection.covers("VI_11"));
        selection.notice("VI_1");
        assert!(selection.covers("VI_1") && !selection.covers("VI_10"));
    }

    #[test]
    fn no_text_selects_all_and_a_text_without_an_instance_is_named() {
        let ids = ["a", "b"];
        assert!(select(&[], &ids).covers("a"));
        assert_eq!(select(&["a", "x"], &ids).missing(&ids.iter().copied()), Some("x"));
        assert_eq!(select(&["a"], &ids).missing(&ids.iter().copied()), None);
    }
}
