// Reads the API in a thread of its own, so that neither a large document nor a failover of thousands of instances holds
// up the page. It hands over lists and events in parts of limited size.
//
//   start ──▶ read the documents ──▶ follow the events ──▶ connection lost ──▶ wait ──┐
//                  ▲                  └─ `reset`, `dropped`: read them again         │
//                  └────────────────────────────────────────────────────────────────┘

import { EventParser, parseEventId } from './sse.js';
import { RequestError, dateOf, request, setToken } from './request.js';

const PART_ITEMS = 250;
const MAX_BATCH = 200;
const BATCH_INTERVAL_MS = 100;
// The node sends a sign of life every 15 s.
const SILENCE_LIMIT_MS = 40_000;
const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 15_000;
const HISTORY_ITEMS = 1000;
const MAX_PROBLEMS = 100;
const REFRESH_INTERVAL_MS = 15_000;
// Values that change without an event, for example a priority in keepalived's configuration.
const LISTS_INTERVAL_MS = 300_000;

/** The id of the last event that was handed over; null before the first documents. */
let position = null;
/** Since when nothing was received, by this machine's clock; null while the stream is open. */
let lostAt = null;
let lastByteAt = Date.now();
let wake = () => {};
let isLive = false;

onmessage = ({ data: message }) => {
    if (message.kind === 'start' || message.kind === 'token') {
        setToken(message.token);
        if (message.kind === 'start') run();
        wake();
    } else if (message.kind === 'retry') {
        wake();
    } else if (message.kind === 'request') {
        answer(message.number, message.path);
    } else if (message.kind === 'refresh') {
        refresh();
    }
};

/** A request of a view. */
async function answer(number, path) {
    try {
        const response = await request(path);
        const date = dateOf(response);
        const value = await response.json();
        postMessage({ kind: 'answer', number, date, value });
    } catch (error) {
        postMessage({ kind: 'answer', number, problem: problemOf(error) });
    }
}

const problemOf = (error) =>
    error instanceof RequestError
        ? error.problem
        : { status: 0, code: null, detail: 'the answer of the node is incomplete', hint: null };

async function run() {
    let attempt = 0;
    for (;;) {
        try {
            await readDocuments();
            await follow(() => {
                attempt = 0;
            });
            throw new RequestError(0, { detail: 'the node has closed the connection' });
        } catch (error) {
            isLive = false;
            if (lostAt === null) lostAt = lastByteAt;
            const problem = problemOf(error);
            const needsToken = problem.status === 401;
            const limit = Math.min(MAX_RETRY_MS, MIN_RETRY_MS * 2 ** attempt);
            // Without the random part, all pages would come back at the same time after a restart.
            const delay = needsToken ? null : limit * (0.5 + Math.random() / 2);
            postMessage({ kind: 'link', state: needsToken ? 'token' : 'stale', since: lostAt, problem, delay });
            attempt += 1;
            await waitFor(delay);
        }
    }
}

function waitFor(delay) {
    return new Promise((resolve) => {
        const timer = delay === null ? null : setTimeout(resolve, delay);
        wake = () => {
            clearTimeout(timer);
            resolve();
        };
    });
}

const timeout = (delay) =>
    new Promise((resolve) => {
        setTimeout(resolve, delay);
    });

/** Reads everything. The status comes first: the events after its number are not in it for certain. */
async function readDocuments() {
    const status = await readDocument('/v1/status', 'status');
    if (position === null || position.epoch !== status.epoch) position = { epoch: status.epoch, seq: status.seq };
    await readDocument('/v1/version', 'version');
    await readLists({ epoch: status.epoch, seq: status.seq });
}

/** Reads the lists. They contain the effects of all events up to `asOf`. */
async function readLists(asOf) {
    await readList('/v1/instances', 'instances', asOf);
    await readList('/v1/findings', 'findings', asOf);
    await readDocument('/v1/targets', 'targets');
    await readHistory();
}

/** A node whose history cannot be read has roles and findings all the same. */
async function readHistory() {
    try {
        await readList(`/v1/history?limit=${HISTORY_ITEMS}`, 'history');
    } catch (error) {
        if (!(error instanceof RequestError) || ![404, 503].includes(error.status)) throw error;
        postMessage({
            kind: 'list',
            name: 'history',
            items: [],
            isLast: true,
            head: { epoch: position.epoch, problem: error.problem },
        });
    }
}

async function readDocument(path, name) {
    const response = await request(path);
    const date = dateOf(response);
    const value = await response.json();
    lastByteAt = Date.now();
    if (name === 'status') {
        // Thousands of files may have a problem; the page shows the first ones and the number.
        value.problem_count = value.problems.length;
        value.problems.length = Math.min(value.problems.length, MAX_PROBLEMS);
    }
    postMessage({ kind: 'document', name, date, value });
    return value;
}

/** Reads a list and hands it over in parts. */
async function readList(path, name, asOf = null) {
    const response = await request(path);
    const { items, ...head } = await response.json();
    lastByteAt = Date.now();
    for (let begin = 0; begin === 0 || begin < items.length; begin += PART_ITEMS) {
        const isLast = begin + PART_ITEMS >= items.length;
        postMessage({ kind: 'list', name, items: items.slice(begin, begin + PART_ITEMS), isLast, head, asOf });
        // Between two parts, the page can draw.
        if (!isLast) await timeout(4);
    }
}

/** Reads what changes without an event, while the stream is open. */
async function refresh() {
    if (!isLive) return;
    try {
        await readDocument('/v1/status', 'status');
        await readDocument('/v1/targets', 'targets');
    } catch {
        // The stream shows whether the node is reachable.
    }
}

/** Follows the events until the connection ends. */
async function follow(onOpen) {
    const controller = new AbortController();
    const watch = setInterval(() => {
        if (Date.now() - lastByteAt > SILENCE_LIMIT_MS) controller.abort();
    }, 5000);
    try {
        const headers = { Accept: 'text/event-stream', 'Last-Event-ID': `${position.epoch}-${position.seq}` };
        const response = await request('/v1/events', headers, controller.signal);
        await readEvents(response.body.pipeThrough(new TextDecoderStream()).getReader(), onOpen);
    } catch (error) {
        if (error instanceof RequestError) throw error;
        throw new RequestError(0, { detail: 'the connection to the node was lost' });
    } finally {
        clearInterval(watch);
        batch.flush();
    }
}

async function readEvents(reader, onOpen) {
    const parser = new EventParser();
    let part = reader.read();
    let listsDue = timeout(LISTS_INTERVAL_MS);
    for (;;) {
        const next = await Promise.race([part, listsDue]);
        if (next === undefined) {
            // ORDER: the events that arrive meanwhile are applied after the lists, which may contain them already.
            batch.flush();
            await readLists(position);
            listsDue = timeout(LISTS_INTERVAL_MS);
            continue;
        }
        const { value, done } = next;
        if (done) return;
        part = reader.read();
        lastByteAt = Date.now();
        if (!isLive) {
            // The first bytes say that the node has accepted the stream.
            isLive = true;
            lostAt = null;
            onOpen();
            postMessage({ kind: 'link', state: 'live' });
        }
        for (const event of parser.push(value)) await take(event);
    }
}

async function take({ id, name, data }) {
    const parsed = parseEventId(id);
    if (parsed === null && data !== null) {
        if (name !== 'reset' && name !== 'dropped') return;
        const document = JSON.parse(data);
        const next = parseEventId(document.next_after);
        if (next !== null) position = next;
        batch.flush();
        postMessage({ kind: 'missed', count: document.count ?? null, reason: document.reason ?? name });
        // The node keeps the events that follow while the lists are read.
        await readLists(position);
        return;
    }
    if (parsed === null) return;
    const isNew = parsed.epoch !== position.epoch || parsed.seq > position.seq;
    if (!isNew) return;
    position = parsed;
    if (data !== null) batch.add({ name, data: JSON.parse(data) });
}

/** Events on their way to the page: one at once, many together. */
const batch = {
    items: [],
    timer: null,
    sentAt: 0,

    // BOUND: MAX_BATCH events.
    add(event) {
        this.items.push(event);
        if (this.items.length >= MAX_BATCH || Date.now() - this.sentAt > BATCH_INTERVAL_MS) this.flush();
        else this.timer ??= setTimeout(() => this.flush(), BATCH_INTERVAL_MS);
    },

    flush() {
        clearTimeout(this.timer);
        this.timer = null;
        if (this.items.length === 0) return;
        postMessage({ kind: 'events', items: this.items });
        this.items = [];
        this.sentAt = Date.now();
    },
};

setInterval(refresh, REFRESH_INTERVAL_MS);
