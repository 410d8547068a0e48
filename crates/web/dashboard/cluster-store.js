// SPDX-License-Identifier: Apache-2.0
// What the page knows about the cluster.

/** The states of a group, the most serious first. */
export const STATES = ['two-primaries', 'no-primary', 'ambiguous', 'unknown', 'one-primary'];

export const STATE_MEANINGS = {
    'two-primaries': 'two or more live nodes hold an address, and have confirmed it',
    'no-primary': 'all nodes are live, and none holds an address',
    ambiguous: 'it is not clear which instances belong together',
    unknown: 'no live node holds an address, and a node is lost or stopped, or no other node is known; or two claim it, and one has not confirmed it',
    'one-primary': 'exactly one live node holds the addresses',
};

export const cluster = {
    /** What the lists rest on: connection, age, domain; null before the first answer. */
    basis: null,
    /** BOUND: those of the domain. */
    nodes: [],
    groups: [],
    findings: [],
    /** Whether the groups have arrived. */
    isRead: false,
    /** Why the cluster could not be read; null if it could. */
    problem: null,
    /** The numbers of `GET /v1/cluster`, which every view shows; null before the first answer. */
    status: null,
};

const incoming = new Map();

/** Adds the text that a search looks at. */
function prepared(group) {
    const members = group.members.map((member) => `${member.node} ${member.instance}`).join(' ');
    group.searchText = `${group.id} ${group.addresses.join(' ')} ${members} ${group.findings.join(' ')}`.toLowerCase();
    return group;
}

/** Takes over a message of the worker; returns whether a list is complete. */
export function receiveCluster({ name, items, isFirst, isLast, head, value }) {
    if (name === 'problem') {
        cluster.problem = value;
        return true;
    }
    if (name === 'status') {
        cluster.status = value;
        return true;
    }
    // The parts before belong to a read that was ended.
    const parts = isFirst ? [] : (incoming.get(name) ?? []);
    parts.push(...items);
    incoming.set(name, parts);
    if (!isLast) return false;
    incoming.delete(name);
    cluster[name] = name === 'groups' ? parts.map(prepared) : parts;
    cluster.basis = head;
    cluster.problem = null;
    if (name === 'groups') cluster.isRead = true;
    return true;
}

/** The number of groups in each state. */
export function stateCounts() {
    const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
    for (const { state } of cluster.groups) counts[state] = (counts[state] ?? 0) + 1;
    return counts;
}

/** The instance of a group on the node that answers; null if it has none. */
export const ownInstance = (group) =>
    group.members.find((member) => member.node === cluster.basis?.node)?.instance ?? null;
