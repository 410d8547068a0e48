//! Asks the kernel once where every instance stands: each namespace is asked for its links and
//! addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_core::announce::Survey;
use vipwatch_core::standing::{Holding, holding, standing};
use vipwatch_core::{Chain, Fault, LinkName, NetnsName, Standing};
use vipwatch_linux::fleet::{Asker, Where};
use vipwatch_linux::netns::{Netns, NetnsError, visit};
use vipwatch_linux::survey::Surveyor;

use crate::discovery::Found;

/// One instance, and what the kernel says of it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The instance.
    pub found: &'a Found,
    /// Where it stands.
    pub standing: Standing,
    /// Each watched address, and what has become of it.
    pub addresses: Vec<(LinkName, IpNet, Holding)>,
}

/// Looks at all of `instances`.
pub fn look(instances: &[Arc<Found>]) -> Vec<Seen<'_>> {
    // Many instances share a namespace; it is asked once.
    let mut looker = Looker::new();
    let mut surveys: BTreeMap<Option<&NetnsName>, Result<Survey, Standing>> = BTreeMap::new();
    let each = instances.iter().map(|found| {
        let netns = found.netns.as_ref();
        let survey = surveys.entry(netns).or_insert_with(|| looker.survey(netns));
        let watched = found.watched();
        let addresses = watched.iter().map(|(link, cidr)| {
            let found = survey.as_ref().map(|survey| holding(survey, *link, *cidr));
            (*link, *cidr, found.unwrap_or(Holding::Absent))
        });
        let addresses = addresses.collect();
        let standing = match survey {
            Ok(survey) => standing(&watched, survey),
            Err(why) => why.clone(),
        };
        Seen { found, standing, addresses }
    });
    each.collect()
}

/// Asks namespaces for everything, again and again: from outside where they can be asked so, by
/// visiting them where not.
#[derive(Debug)]
pub struct Looker {
    asker: Option<Asker>,
}

impl Looker {
    /// Has not looked yet.
    pub fn new() -> Self {
        Self { asker: Asker::open().ok() }
    }

    /// Everything in a namespace, now; or where its instances stand without it.
    pub fn survey(&mut self, netns: Option<&NetnsName>) -> Result<Survey, Standing> {
        self.ask_about(netns).map_or_else(|| visiting(netns), Ok)
    }

    fn ask_about(&mut self, netns: Option<&NetnsName>) -> Option<Survey> {
        let asker = self.asker.as_mut()?;
        let place = match netns {
            Some(name) => asker.find(&Netns::open(name).ok()?).ok()??,
            None => Where::Here,
        };
        asker.survey(place).ok()
    }
}

impl Default for Looker {
    fn default() -> Self {
        Self::new()
    }
}

fn visiting(netns: Option<&NetnsName>) -> Result<Survey, Standing> {
    let unknown = |error: &dyn std::error::Error| Standing::Unknown(Chain(error).to_string());
    match visit(netns, || Surveyor::open().and_then(|mut surveyor| surveyor.survey())) {
        Ok(Ok(survey)) => Ok(survey),
        Ok(Err(error)) => Err(unknown(&error)),
        Err(NetnsError::Missing(_)) => Err(Standing::Fault(Fault::NoNetns)),
        Err(error) => Err(unknown(&error)),
    }
}
