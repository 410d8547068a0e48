// The page's side of the worker that reads the API.

import { receive, setFetch } from './store.js';
import { setServerTime } from './clock.js';

const TOKEN_KEY = 'vipwatch-token';
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
    worker.postMessage({ kind: 'start', token: storage((session) => session.getItem(TOKEN_KEY)) });
    addEventListener('online', retry);
    document.addEventListener('visibilitychange', () => {
        if (!document.hidden) worker.postMessage({ kind: 'refresh' });
    });
}

/** Connects again at once. */
export const retry = () => worker.postMessage({ kind: 'retry' });

/** Whether a token is stored: then a 401 means that it is wrong. */
export const hasToken = () => storage((session) => session.getItem(TOKEN_KEY)) !== null;

/** Stores a token for this tab and uses it. */
export function useToken(token) {
    storage((session) => session.setItem(TOKEN_KEY, token));
    worker.postMessage({ kind: 'token', token });
}
