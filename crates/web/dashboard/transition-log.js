// SPDX-License-Identifier: Apache-2.0
// The newest transitions of the node, each once, in the order of their numbers.

import { parse } from './clock.js';

/** The number of transitions that the page keeps. */
export const MAX_TRANSITIONS = 5000;
const MAX_GAPS = 100;

/** BOUND: MAX_TRANSITIONS transitions and MAX_GAPS gaps, the newest of each. */
export class TransitionLog {
    epoch = null;
    /** Transitions, oldest first. */
    items = [];
    /** Times in which transitions may be missing. */
    gaps = [];

    /** Adds the items of a document of the history. */
    merge(epoch, documents) {
        this.#enter(epoch);
        const bySeq = new Map(this.items.map((item) => [item.seq, item]));
        for (const item of documents) {
            if (item.type === 'transition') bySeq.set(item.seq, prepared(item));
        }
        this.items = [...bySeq.values()].sort((a, b) => a.seq - b.seq).slice(-MAX_TRANSITIONS);
        const gaps = new Map(
            [...this.gaps, ...documents.filter((item) => item.type === 'gap')].map((gap) => [gap.from, gap]),
        );
        this.gaps = [...gaps.values()].sort((a, b) => (a.from < b.from ? -1 : 1)).slice(-MAX_GAPS);
    }

    /** Adds a transition from an event, or replaces it: after a lost connection, the document may have it already. */
    add(epoch, item) {
        this.#enter(epoch);
        const index = this.#indexOf(item.seq);
        const isKnown = this.items[index]?.seq === item.seq;
        this.items.splice(index, isKnown ? 1 : 0, prepared(item));
        // Removing one by one would move the whole list each time.
        if (this.items.length > MAX_TRANSITIONS * 1.1) this.items = this.items.slice(-MAX_TRANSITIONS);
    }

    /** Changes fields of a transition, if it is in the list. */
    change(epoch, seq, fields) {
        const item = this.#find(epoch, seq);
        if (item) Object.assign(item, fields);
    }

    addLatency(epoch, seq, stage, micros) {
        const item = this.#find(epoch, seq);
        if (item) item.latencies = { ...item.latencies, [stage]: micros };
    }

    #enter(epoch) {
        if (this.epoch === epoch) return;
        this.epoch = epoch;
        this.items = [];
        this.gaps = [];
    }

    #find(epoch, seq) {
        if (this.epoch !== epoch) return null;
        const item = this.items[this.#indexOf(seq)];
        return item?.seq === seq ? item : null;
    }

    /** The index of the first transition with this number or a higher one. */
    #indexOf(seq) {
        let [low, high] = [0, this.items.length];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.items[middle].seq < seq) low = middle + 1;
            else high = middle;
        }
        return low;
    }
}

/** Adds the time as a number. */
export function prepared(item) {
    item.atMs = parse(item.at) ?? 0;
    return item;
}
