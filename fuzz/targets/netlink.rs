// SPDX-License-Identifier: Apache-2.0
//! Any bytes as a datagram of routing netlink: the decoder must not panic, must decode each message
//! independently of the others, and its two readers of a message must agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_core::Observation;
use vipwatch_fuzz::within_budget;
use vipwatch_linux::netlink::decode::facts::{address_facts, link_facts};
use vipwatch_linux::netlink::decode::{Message, envelopes, messages};

/// `RTM_NEWLINK` and `RTM_NEWADDR` of `<linux/rtnetlink.h>`.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;

/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

fuzz_target!(|datagram: &[u8]| within_budget(datagram.len(), || {
    let all: Vec<_> = messages(datagram).collect();
    let is_error_last = all.iter().rev().skip(1).all(Result::is_ok);
    assert!(is_error_last, "decoding ends after a malformed message");
    let mut at = 0;
    for (envelope, message) in envelopes(datagram).zip(&all) {
        assert_eq!(messages(&datagram[at..]).next().as_ref(), Some(message), "at byte {at}");
        let Ok((header, body)) = envelope else { break };
        at = (at + HEADER_BYTES + body.len()).next_multiple_of(4).min(datagram.len());
        if let Ok((read, message)) = message {
            assert_eq!(*read, header);
            assert_agreement(header.kind, body, message);
        }
    }
}));

/// Checks that the short and the detailed reader of one message agree.
fn assert_agreement(kind: u16, body: &[u8], message: &Message) {
    let address = address_facts(body);
    let link = link_facts(body);
    match message {
        Message::Fact(Observation::AddressSeen { link, cidr, .. }) if kind == NEW_ADDRESS => {
            let facts = address.expect("the short reader accepted it").expect("an IP address");
            assert_eq!((facts.target.link, facts.target.ip), (*link, cidr.addr()));
            assert_eq!(facts.prefix, cidr.prefix_len());
            assert!(cidr.prefix_len() <= cidr.max_prefix_len());
        }
        Message::Fact(Observation::LinkSeen { link: index, name }) if kind == NEW_LINK => {
            assert!(!name.to_string().is_empty(), "{name:?}");
            // The detailed reader reads every attribute, and may find a malformed one.
            if let Ok(facts) = link {
                assert_eq!(facts.link, *index);
            }
        }
        Message::Fact(_) | Message::Done | Message::Error(_) | Message::Unrelated => {}
    }
}
