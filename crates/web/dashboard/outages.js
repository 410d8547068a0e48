// SPDX-License-Identifier: Apache-2.0
// Figures about a set of transitions: which instances change often, and how long no node was primary as far as this node
// can know.

import { now, parse } from './clock.js';

/** The instances with the most changes of their role. A first role, after which nothing is known, is no change. */
export function flapRanking(transitions) {
    const byId = new Map();
    for (const { id, from, to, atMs } of transitions) {
        if (from === null || from === to || to === 'removed') continue;
        const entry = byId.get(id) ?? { id, changes: 0, lastMs: 0 };
        entry.changes += 1;
        entry.lastMs = Math.max(entry.lastMs, atMs);
        byId.set(id, entry);
    }
    return [...byId.values()].sort((a, b) => b.changes - a.changes || b.lastMs - a.lastMs);
}

/**
 * For each instance, in milliseconds: `here` (this node was primary), `elsewhere` (backup: another node may have been
 * primary), `broken` (fault, unknown or partial here), and `without`: the time in which certainly no node was primary. That is
 * known at a takeover from a node that had gone silent, and from the open finding `no-primary`.
 */
export function outages(transitions, findings, fromMs, untilMs) {
    const byId = new Map();
    const entryOf = (id) => {
        const entry = byId.get(id) ?? { id, here: 0, elsewhere: 0, broken: 0, without: 0, last: null };
        byId.set(id, entry);
        return entry;
    };
    for (const item of transitions) {
        const entry = entryOf(item.id);
        const begin = entry.last === null ? { role: item.from, at: fromMs } : entry.last;
        addTime(entry, begin.role, item.atMs - begin.at);
        entry.last = { role: item.to, at: item.atMs };
        if (item.to === 'primary' && item.cause === 'peer-silent') entry.without += item.evidence?.silent_ms ?? 0;
    }
    for (const entry of byId.values()) addTime(entry, entry.last.role, untilMs - entry.last.at);
    for (const finding of findings) {
        const since = parse(finding.since);
        if (finding.name !== 'no-primary' || since === null || finding.id === null) continue;
        entryOf(finding.id).without += Math.max(0, Math.min(untilMs, now()) - Math.max(since, fromMs));
    }
    return [...byId.values()].sort((a, b) => b.without - a.without || b.broken - a.broken || b.elsewhere - a.elsewhere);
}

/** Adds a time; a negative one comes from a clock that was set back, and counts as none. */
function addTime(entry, role, milliseconds) {
    const time = Math.max(0, milliseconds);
    if (role === 'primary') entry.here += time;
    else if (role === 'backup') entry.elsewhere += time;
    else if (role !== null && role !== 'removed') entry.broken += time;
}

/** The length of the gaps within a time. */
export function gapTime(gaps, fromMs, untilMs) {
    const overlap = (gap) => Math.max(0, Math.min(untilMs, parse(gap.until)) - Math.max(fromMs, parse(gap.from)));
    return gaps.reduce((sum, gap) => sum + overlap(gap), 0);
}
