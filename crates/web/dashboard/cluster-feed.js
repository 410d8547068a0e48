// SPDX-License-Identifier: Apache-2.0
// Reads the cluster in the worker, while a view shows it: waits for a change of the node's view, and reads it again.

import { RequestError, requestDocument } from './request.js';

const PART_ITEMS = 250;
/** The shortest time between two reads: a cluster may have thousands of groups. */
const READ_INTERVAL_MS = 1000;
const RETRY_MS = 3000;

const wait = (delay) =>
    new Promise((resolve) => {
        setTimeout(resolve, delay);
    });

let running = null;

/** Begins or ends to follow the cluster. A request that waits is ended: a browser has six connections to a host. */
export function followCluster(isWanted) {
    if (!isWanted) {
        running?.abort();
        running = null;
    } else if (running === null) {
        running = new AbortController();
        follow(running.signal);
    }
}

async function follow(signal) {
    let seen = 0;
    while (!signal.aborted) {
        try {
            const { value } = await requestDocument(`/v1/cluster/changes?after=${seen}`, signal);
            if (value.changes === seen) continue;
            seen = value.changes;
            await read(signal);
            await wait(READ_INTERVAL_MS);
        } catch (error) {
            if (signal.aborted) return;
            const problem = error instanceof RequestError ? error.problem : { detail: String(error) };
            postMessage({ kind: 'cluster', name: 'problem', value: problem });
            // A restarted node counts its changes anew.
            seen = 0;
            await wait(RETRY_MS);
        }
    }
}

async function read(signal) {
    for (const name of ['nodes', 'findings', 'groups']) {
        const { items, ...head } = (await requestDocument(`/v1/cluster/${name}`, signal)).value;
        for (let begin = 0; begin === 0 || begin < items.length; begin += PART_ITEMS) {
            if (signal.aborted) return;
            const isFirst = begin === 0;
            const isLast = begin + PART_ITEMS >= items.length;
            const part = items.slice(begin, begin + PART_ITEMS);
            postMessage({ kind: 'cluster', name, items: part, isFirst, isLast, head });
            // Between two parts, the page can draw.
            if (!isLast) await wait(4);
        }
    }
}
