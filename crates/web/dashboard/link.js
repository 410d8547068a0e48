// SPDX-License-Identifier: Apache-2.0
// The page's side of the worker that reads the API.

import { receive, setFetch } from './store.js';
import { setServerTime } from './clock.js';

const TOKEN_KEY = 'vipwatch-token';
/** The tokens that a node accepts in its file of tokens. A request with other characters would fail in the browser. */
const TOKEN = /^[A-Za-z0-9._~+/=-]{16,512}$/;
const worker = new Worker('/assets/worker.js', { type: 'module' });
/** Requests of views that wait for an answer. BOUND: a view has a few at a time. */
const waiting = new Map();
let lastNumber = 0;

/** A request of a view that failed, with the node's problem document. */
export class ProblemError extends Error {
    constructor(problem) {
        super(problem.detail);
        this.problem = problem;
    }
}

worker.onmessage = ({ data: message }) => {
    if (message.kind !== 'answer') {
        receive(message);
        return;
    }
    const { resolve, reject } = waiting.get(message.number);
    waiting.delete(message.number);
    if (message.date) setServerTime(message.date);
    if (message.problem) reject(new ProblemError(message.problem));
    else resolve(message.value);
};

/** Requests a document of the API. */
export function fetchDocument(path) {
    lastNumber += 1;
    const number = lastNumber;
    return new Promise((resolve, reject) => {
        waiting.set(number, { resolve, reject });
        worker.postMessage({ kind: 'request', number, path });
    });
}

const storage = (act) => {
    try {
        return act(sessionStorage);
    } catch {
        return null;
    }
};

/** Begins to read the API. */
export function start() {
    setFetch(fetchDocument);
    worker.postMessage({ kind: 'start', token: storedToken() });
    addEventListener('online', retry);
    document.addEventListener('visibilitychange', sendVisibility);
    // A tab can be opened in the background.
    sendVisibility();
}

const sendVisibility = () => worker.postMessage({ kind: document.hidden ? 'hidden' : 'visible' });

/** Whether a view shows the cluster, which the worker reads only then. */
export const wantCluster = (isWanted) => worker.postMessage({ kind: 'cluster', isWanted });

/** Connects again at once. */
export const retry = () => worker.postMessage({ kind: 'retry' });

/** Whether a node can have this token. */
export const isToken = (text) => TOKEN.test(text);

function storedToken() {
    const token = storage((session) => session.getItem(TOKEN_KEY));
    return token !== null && isToken(token) ? token : null;
}

/** Whether a token is stored: then a 401 means that it is wrong. */
export const hasToken = () => storedToken() !== null;

/** Stores a token for this tab and uses it. Call it only with a text for which [`isToken`] is true. */
export function useToken(token) {
    storage((session) => session.setItem(TOKEN_KEY, token));
    worker.postMessage({ kind: 'token', token });
}
