// SPDX-License-Identifier: Apache-2.0
// What the page knows about the node: the documents of the API, kept current by the events. All lists are bounded, so
// that a page that stays open for days does not grow.

import { inFrame } from './frames.js';
import { naturalKey } from './format.js';
import { noticeEventTime, parse, setServerTime } from './clock.js';
import { receiveCluster } from './cluster-store.js';
import { TransitionLog } from './transition-log.js';

export const store = {
    node: null,
    status: null,
    version: null,
    targets: [],
    /** Instances by id. BOUND: those of the node. */
    instances: new Map(),
    /** Findings by instance and name. BOUND: those of the node. */
    findings: new Map(),
    log: new TransitionLog(),
    historyProblem: null,
    link: { state: 'connecting', since: null, problem: null, retryAt: null },
    /** The last event whose effects are in the lists: `{epoch, seq}`. */
    listsAsOf: null,
    /** Whether each list has arrived, and whether all documents have. */
    areInstancesRead: false,
    areFindingsRead: false,
    isLoaded: false,
    /** The version that the page was loaded with. */
    firstVersion: null,
    /** How often each part has changed, so that views can keep what they have computed. */
    changes: { status: 0, version: 0, instances: 0, findings: 0, history: 0, targets: 0, link: 0, cluster: 0 },
};

const listeners = new Set();
let changed = new Set();
let isRequested = false;

/** Calls `listener` with the set of changed parts before the browser draws; returns a function that ends this. */
export function onChange(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
}

/** Marks a part as changed: `instances`, `findings`, `history`, `status`, `targets`, `link`, `cluster`. */
export function mark(part) {
    changed.add(part);
    store.changes[part] += 1;
    if (isRequested) return;
    isRequested = true;
    inFrame(() => {
        isRequested = false;
        const parts = changed;
        changed = new Set();
        for (const listener of listeners) listener(parts);
    });
}

/** A finding about several nodes has an id of its own: two of them can have the same name and instance. */
export const findingKey = (finding) => finding.cluster_id ?? `${finding.id ?? ''} ${finding.name}`;

/** Adds what views need in each instance: its sort key and the text that a search looks at. */
function prepared(item) {
    item.sortKey = naturalKey(item.id);
    item.sinceMs = parse(item.since);
    const addresses = item.addresses.map((address) => address.cidr).join(' ');
    item.searchText =
        `${item.id} ${item.name} ${addresses} ${item.netns ?? ''} ${item.interface} ${item.vrid ?? ''}`.toLowerCase();
    return item;
}

/** Adds the time of a finding as a number. */
function dated(finding) {
    finding.sinceMs = parse(finding.since);
    return finding;
}

/** Whether an operator should look at the instance. */
export const needsAttention = (item) =>
    item.role === 'fault' ||
    item.role === 'unknown' ||
    item.role === 'partial' ||
    item.failures.length > 0 ||
    item.findings.length > 0;

/** The lists that are being received. */
const incoming = new Map();

/** Takes over a message of the worker. */
export function receive(message) {
    if (message.date) setServerTime(message.date);
    if (message.kind === 'document') receiveDocument(message.name, message.value);
    else if (message.kind === 'list') receiveList(message);
    else if (message.kind === 'events') receiveEvents(message.items);
    else if (message.kind === 'link') receiveLink(message);
    else if (message.kind === 'cluster' && receiveCluster(message)) mark('cluster');
}

function receiveDocument(name, value) {
    if (name === 'status') {
        store.status = value;
        value.health.forEach(dated);
        store.node = value.node;
    } else if (name === 'version') {
        store.version = value;
        store.firstVersion ??= `${value.version} ${value.commit}`;
    } else {
        store.targets = value.items;
    }
    mark(name);
}

function receiveList({ name, items, isLast, head, asOf }) {
    const parts = incoming.get(name) ?? [];
    parts.push(...items);
    incoming.set(name, parts);
    // The first list grows on the screen; a later one replaces the old one when it is complete.
    if (name === 'instances' && !store.areInstancesRead) {
        for (const item of items) store.instances.set(item.id, prepared(item));
        mark('instances');
    }
    if (!isLast) return;
    incoming.delete(name);
    if (asOf) store.listsAsOf = asOf;
    if (name === 'instances') {
        if (store.areInstancesRead) store.instances = new Map(parts.map((item) => [item.id, prepared(item)]));
        store.areInstancesRead = true;
    } else if (name === 'findings') {
        store.findings = new Map(parts.map((item) => [findingKey(item), dated(item)]));
        store.areFindingsRead = true;
    } else {
        store.log.merge(head.epoch, parts);
        store.historyProblem = head.problem ?? null;
        store.isLoaded = true;
    }
    mark(name);
}

function receiveLink({ state, since, problem, delay }) {
    const retryAt = delay === null || delay === undefined ? null : performance.now() + delay;
    store.link = { state, since: since ?? null, problem: problem ?? null, retryAt };
    mark('link');
}

/** Transitions since the last call, for the announcement to screen readers. BOUND: 1,000. */
let announced = [];
export function takeAnnouncements() {
    const taken = announced;
    announced = [];
    return taken;
}

function receiveEvents(events) {
    for (const { name, data } of events) {
        const at = parse(data.at);
        if (at !== null) noticeEventTime(at);
        record[name]?.(data);
        apply[name]?.(data);
    }
}

/** Enters an event into the list of transitions. */
const record = {
    transition(event) {
        store.log.add(event.epoch, { type: 'transition', ...event });
        // BOUND: the newest 1,000 since the last announcement.
        if (announced.length < 1000) announced.push(event);
        mark('history');
    },

    cause(event) {
        const { cause, cause_text, evidence } = event;
        store.log.change(event.epoch, event.transition, { cause, cause_text, evidence });
        mark('history');
    },

    removed(event) {
        const item = { type: 'transition', ...event, to: 'removed', trigger: 'config', latencies: {} };
        store.log.add(event.epoch, item);
        mark('history');
    },

    delivery(event) {
        if (!isOfTransition(event)) return;
        store.log.addLatency(event.epoch, event.notification, event.stage, event.micros);
        mark('history');
    },
};

/** Whether the event has the latency of a transition. */
const isOfTransition = (event) =>
    event.source === 'node' &&
    event.id !== null &&
    event.finding === null &&
    event.error === null &&
    event.micros !== null;

/** Whether the effects of an event are in the lists already: after a lost connection, the missed events arrive after them. */
const isInLists = ({ epoch, seq }) => epoch === store.listsAsOf?.epoch && seq <= store.listsAsOf.seq;

/** Applies an event to the lists of instances and findings. An instance has the number of its last transition. */
const apply = {
    transition(event) {
        const item = store.instances.get(event.id);
        if (!item) {
            // The event has no configuration of the instance; the list has.
            unknownIds.add(event.id);
            readUnknown();
            return;
        }
        if (event.seq <= item.seq) return;
        const { reason, seq, trigger, cause, cause_text, evidence, latencies } = event;
        const changes = { reason, seq, trigger, cause, cause_text, evidence, latencies };
        // Failures stay: a target that did not receive the last transition has not received this one either.
        Object.assign(item, changes, { role: event.to, since: event.at });
        if (event.stages) item.stages = event.stages;
        const newAddresses = new Map(event.addresses.map((address) => [address.cidr, address]));
        item.addresses = item.addresses.map((address) => newAddresses.get(address.cidr) ?? address);
        prepared(item);
        mark('instances');
    },

    cause(event) {
        const item = store.instances.get(event.id);
        if (item?.seq !== event.transition) return;
        const { cause, cause_text, evidence } = event;
        Object.assign(item, { cause, cause_text, evidence });
        mark('instances');
    },

    removed(event) {
        // It may be configured again since.
        if (store.instances.get(event.id)?.seq > event.seq) return;
        store.instances.delete(event.id);
        mark('instances');
    },

    delivery(event) {
        const item = event.source === 'node' ? store.instances.get(event.id) : undefined;
        // A delivery about a finding has no stage of the instance.
        if (!item || event.finding !== null || isInLists(event)) return;
        if (isOfTransition(event) && event.notification === item.seq) {
            item.latencies = { ...item.latencies, [event.stage]: event.micros };
        }
        const others = item.failures.filter((one) => one.stage !== event.stage || one.target !== event.target);
        const { stage, target, error } = event;
        item.failures = error === null ? others : [...others, { stage, target, error }];
        mark('instances');
    },

    finding(event) {
        if (isInLists(event)) return;
        const key = findingKey(event.finding);
        if (event.state === 'closed') store.findings.delete(key);
        else store.findings.set(key, dated(event.finding));
        mark('findings');
        const item = store.instances.get(event.id);
        if (!item) return;
        const others = item.findings.filter((name) => name !== event.finding.name);
        item.findings = event.state === 'closed' ? others : [...others, event.finding.name];
        mark('instances');
    },
};

const unknownIds = new Set();
let isReading = false;
let fetchDocument = null;

/** Sets the function that requests a path of the API. */
export const setFetch = (fetch) => {
    fetchDocument = fetch;
};

/** Reads instances that an event has named for the first time. */
async function readUnknown() {
    if (isReading) return;
    isReading = true;
    while (unknownIds.size > 0) {
        const ids = [...unknownIds].slice(0, 50);
        for (const id of ids) unknownIds.delete(id);
        for (const id of ids) {
            try {
                const { instance } = await fetchDocument(`/v1/instances/${encodeURIComponent(id)}`);
                // The path also accepts the beginning of an id: this one is gone, and another one begins with it.
                if (instance.id !== id) continue;
                if (instance.seq >= (store.instances.get(id)?.seq ?? 0)) store.instances.set(id, prepared(instance));
                mark('instances');
            } catch {
                // It is gone again.
            }
        }
    }
    isReading = false;
}
