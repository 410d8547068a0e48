// SPDX-License-Identifier: Apache-2.0
// Hands events over from the worker to the page.

const MAX_BATCH = 200;
const BATCH_INTERVAL_MS = 100;

/** Events on their way to the page: one at once, many together. */
export const batch = {
    items: [],
    timer: null,
    sentAt: 0,

    // BOUND: MAX_BATCH events.
    add(event) {
        this.items.push(event);
        if (this.items.length >= MAX_BATCH || performance.now() - this.sentAt > BATCH_INTERVAL_MS) this.flush();
        else this.timer ??= setTimeout(() => this.flush(), BATCH_INTERVAL_MS);
    },

    flush() {
        clearTimeout(this.timer);
        this.timer = null;
        if (this.items.length === 0) return;
        postMessage({ kind: 'events', items: this.items });
        this.items = [];
        this.sentAt = performance.now();
    },
};
