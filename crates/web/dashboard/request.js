// SPDX-License-Identifier: Apache-2.0
// Requests to the API, in the worker.

/** The longest time for an answer with its body. The event stream has no such limit. A wait for a change of the cluster is
 * answered after 15 s. */
const TIME_LIMIT_MS = 30_000;

let token = null;

export const setToken = (value) => {
    token = value;
};

/** An answer that is not the document: the problem document of the node, or a description of what failed. */
export class RequestError extends Error {
    constructor(status, problem) {
        super(problem.detail ?? problem.title ?? `status ${status}`);
        this.status = status;
        this.problem = { status, code: problem.code ?? null, detail: this.message, hint: problem.hint ?? null };
    }
}

/** Requests a document, with a time limit; returns its value and the node's time. `signal` ends the request early. */
export async function requestDocument(path, signal = null) {
    const limit = AbortSignal.timeout(TIME_LIMIT_MS);
    const response = await request(path, {}, signal === null ? limit : AbortSignal.any([signal, limit]));
    try {
        return { value: await response.json(), date: dateOf(response) };
    } catch {
        throw new RequestError(0, { detail: 'the answer of the node is incomplete' });
    }
}

/** Sends a request; returns the response if it succeeded. */
export async function request(path, headers, signal) {
    const all = token === null ? headers : { ...headers, Authorization: `Bearer ${token}` };
    let response;
    try {
        response = await fetch(path, {
            headers: all,
            signal,
            cache: 'no-store',
            credentials: 'omit',
            redirect: 'error',
        });
    } catch {
        throw new RequestError(0, { detail: 'the node does not answer' });
    }
    if (response.ok) return response;
    let problem = {};
    try {
        problem = await response.json();
    } catch {
        /* A proxy may answer with another type. */
    }
    throw new RequestError(response.status, problem);
}

/** The time in the answer's header `Date`, in milliseconds; null if it has none. */
function dateOf(response) {
    const time = Date.parse(response.headers.get('date') ?? '');
    return Number.isNaN(time) ? null : time;
}
