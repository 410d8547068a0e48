// SPDX-License-Identifier: Apache-2.0
// Reads the API in a thread of its own, so that neither a large document nor a failover of thousands of instances holds
// up the page. It hands over lists and events in parts of limited size.
//
//   start ──▶ read the documents ──▶ follow the events ──▶ connection lost ──▶ wait ──┐
//                  ▲                  └─ `reset`, `dropped`: read them again         │
//                  └────────────────────────────────────────────────────────────────┘
//
// While the tab is hidden, the worker pauses before the next attempt.

import { batch } from './batch.js';
import { followCluster } from './cluster-feed.js';
import { EventParser, parseEventId } from './sse.js';
import { RequestError, request, requestDocument, setToken } from './request.js';

const PART_ITEMS = 250;
// The node sends a sign of life every 15 s.
const SILENCE_LIMIT_MS = 40_000;
// A browser has six connections to a host, and a stream occupies one. Hidden tabs must not take them from the others.
const HIDDEN_LIMIT_MS = 30_000;
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
/** When the last bytes arrived, by this machine's clock. It is only shown: the clock may be set. */
let lastByteAt = Date.now();
/** When the last bytes of the stream arrived, by the monotonic clock. */
let streamByteAt = 0;
let isLive = false;
/** Ends the wait before the next attempt. */
let wake = () => {};
/** Ends the pause of a hidden tab. */
let resume = () => {};
/** Ends the running attempt. */
let running = new AbortController();
let isRetryWanted = false;
let isPaused = false;
/** Whether the page shows that the connection is lost. */
let isStale = false;
let hiddenTimer = null;
/** Whether a view shows the cluster. */
let isClusterWanted = false;

onmessage = ({ data: message }) => {
    if (message.kind === 'start') {
        setToken(message.token);
        run();
    } else if (message.kind === 'token') {
        setToken(message.token);
        retry();
    } else if (message.kind === 'retry') {
        retry();
    } else if (message.kind === 'cluster') {
        isClusterWanted = message.isWanted;
        followCluster(isClusterWanted);
    } else if (message.kind === 'request') {
        answer(message.number, message.path);
    } else if (message.kind === 'hidden') {
        hiddenTimer ??= setTimeout(pause, HIDDEN_LIMIT_MS);
    } else if (message.kind === 'visible') {
        clearTimeout(hiddenTimer);
        hiddenTimer = null;
        isPaused = false;
        followCluster(isClusterWanted);
        resume();
        refresh();
    }
};

/** Connects again at once, also if an attempt waits for an answer. */
function retry() {
    if (isLive) return;
    isRetryWanted = true;
    running.abort();
    wake();
}

/** Ends the stream. The node keeps the events, and sends them when the tab is visible again. */
function pause() {
    isPaused = true;
    followCluster(false);
    running.abort();
}

/** A request of a view. */
async function answer(number, path) {
    try {
        postMessage({ kind: 'answer', number, ...(await requestDocument(path)) });
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
        if (isPaused) await visible();
        running = new AbortController();
        isRetryWanted = false;
        try {
            await readDocuments(running.signal);
            await follow(running, () => {
                attempt = 0;
            });
            throw new RequestError(0, { detail: 'the node has closed the connection' });
        } catch (error) {
            isLive = false;
            if (lostAt === null) lostAt = lastByteAt;
            if (isPaused || isRetryWanted) continue;
            const problem = problemOf(error);
            const needsToken = problem.status === 401;
            const limit = Math.min(MAX_RETRY_MS, MIN_RETRY_MS * 2 ** attempt);
            // Without the random part, all pages would come back at the same time after a restart.
            const delay = needsToken ? null : limit * (0.5 + Math.random() / 2);
            postMessage({ kind: 'link', state: needsToken ? 'token' : 'stale', since: lostAt, problem, delay });
            isStale = true;
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

/** Waits until the tab is visible. A page that is out of date stays marked as such. */
async function visible() {
    if (!isStale) postMessage({ kind: 'link', state: 'paused' });
    await new Promise((resolve) => {
        resume = resolve;
    });
    if (!isStale) postMessage({ kind: 'link', state: 'connecting' });
}

const timeout = (delay) =>
    new Promise((resolve) => {
        setTimeout(resolve, delay);
    });

/** Reads the numbers of the cluster, which the head of every view shows. */
async function readCluster(signal) {
    const { value } = await requestDocument('/v1/cluster', signal);
    postMessage({ kind: 'cluster', name: 'status', value });
}

/** Reads everything. The status comes first: the events after its number are not in it for certain. */
async function readDocuments(signal) {
    const status = await readDocument('/v1/status', 'status', signal);
    if (position === null || position.epoch !== status.epoch) position = { epoch: status.epoch, seq: status.seq };
    await readDocument('/v1/version', 'version', signal);
    await readCluster(signal);
    await readLists({ epoch: status.epoch, seq: status.seq }, signal);
}

/** Reads the lists. They contain the effects of all events up to `asOf`. */
async function readLists(asOf, signal) {
    const reads = [
        () => readList('/v1/instances', 'instances', asOf, signal),
        () => readList('/v1/findings', 'findings', asOf, signal),
        () => readDocument('/v1/targets', 'targets', signal),
        () => readHistory(signal),
    ];
    for (const read of reads) {
        await read();
        // The bytes of the stream wait meanwhile.
        streamByteAt = performance.now();
    }
}

/** A node whose history cannot be read has roles and findings all the same. */
async function readHistory(signal) {
    try {
        await readList(`/v1/history?limit=${HISTORY_ITEMS}`, 'history', null, signal);
    } catch (error) {
        // Without a status, the connection is lost.
        if (!(error instanceof RequestError) || [0, 401].includes(error.status)) throw error;
        const head = { epoch: position.epoch, problem: error.problem };
        postMessage({ kind: 'list', name: 'history', items: [], isLast: true, head });
    }
}

async function readDocument(path, name, signal) {
    const { value, date } = await requestDocument(path, signal);
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
async function readList(path, name, asOf, signal) {
    const { items, ...head } = (await requestDocument(path, signal)).value;
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
        await readDocument('/v1/status', 'status', running.signal);
        await readDocument('/v1/targets', 'targets', running.signal);
        await readCluster(running.signal);
    } catch {
        // The stream shows whether the node is reachable.
    }
}

/** Follows the events until the connection ends. */
async function follow(controller, onOpen) {
    streamByteAt = performance.now();
    const watch = setInterval(() => {
        if (performance.now() - streamByteAt > SILENCE_LIMIT_MS) controller.abort();
    }, 5000);
    try {
        const headers = { Accept: 'text/event-stream', 'Last-Event-ID': `${position.epoch}-${position.seq}` };
        const response = await request('/v1/events', headers, controller.signal);
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        await readEvents(reader, controller.signal, onOpen);
    } catch (error) {
        if (error instanceof RequestError) throw error;
        throw new RequestError(0, { detail: 'the connection to the node was lost' });
    } finally {
        clearInterval(watch);
        // After an event that cannot be read, the connection is still open.
        controller.abort();
        batch.flush();
    }
}

async function readEvents(reader, signal, onOpen) {
    const parser = new EventParser();
    const read = () => {
        const next = reader.read();
        // It may fail while the lists are read, or after the loop has ended. In the loop, the race reports it.
        next.catch(() => {});
        return next;
    };
    let part = read();
    let listsDue = timeout(LISTS_INTERVAL_MS);
    for (;;) {
        const next = await Promise.race([part, listsDue]);
        if (next === undefined) {
            // ORDER: the events that arrive meanwhile are applied after the lists, which may contain them already.
            batch.flush();
            await readLists(position, signal);
            listsDue = timeout(LISTS_INTERVAL_MS);
            continue;
        }
        const { value, done } = next;
        if (done) return;
        part = read();
        lastByteAt = Date.now();
        streamByteAt = performance.now();
        if (!isLive) {
            // The first bytes say that the node has accepted the stream.
            isLive = true;
            isStale = false;
            lostAt = null;
            onOpen();
            postMessage({ kind: 'link', state: 'live' });
        }
        for (const event of parser.push(value)) await take(event, signal);
    }
}

async function take({ id, name, data }, signal) {
    const parsed = parseEventId(id);
    if (parsed === null && data !== null) {
        if (name !== 'reset' && name !== 'dropped') return;
        const next = parseEventId(JSON.parse(data).next_after);
        if (next !== null) position = next;
        batch.flush();
        // The node keeps the events that follow while the lists are read.
        await readLists(position, signal);
        return;
    }
    if (parsed === null) return;
    const isNew = parsed.epoch !== position.epoch || parsed.seq > position.seq;
    if (!isNew) return;
    position = parsed;
    if (data !== null) batch.add({ name, data: JSON.parse(data) });
}

setInterval(refresh, REFRESH_INTERVAL_MS);
