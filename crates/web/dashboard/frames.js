// SPDX-License-Identifier: Apache-2.0
// When the page may change what it shows. An element that is replaced between the press and the release of a mouse button
// receives no click, so changes wait for the release.

/** The longest time for which a pressed button holds up changes. */
const MAX_PRESS_MS = 1000;

let pressedAt = null;

addEventListener('pointerdown', () => (pressedAt = performance.now()), { capture: true, passive: true });
for (const name of ['pointerup', 'pointercancel']) {
    // The click follows the release.
    addEventListener(name, () => setTimeout(() => (pressedAt = null)), { capture: true, passive: true });
}

/** Calls `act` before the browser draws, but not while a mouse button is pressed. */
export function inFrame(act) {
    requestAnimationFrame(() => {
        const isPressed = pressedAt !== null && performance.now() - pressedAt < MAX_PRESS_MS;
        if (isPressed) inFrame(act);
        else act();
    });
}

/** Calls `act` at most once in `interval` milliseconds, however often it is requested. */
export class Paced {
    #act;
    #interval;
    #timer = null;
    #actedAt = -Infinity;

    constructor(interval, act) {
        this.#interval = interval;
        this.#act = act;
    }

    request() {
        if (this.#timer !== null) return;
        const wait = Math.max(0, this.#actedAt + this.#interval - performance.now());
        this.#timer = setTimeout(() => inFrame(() => this.#run()), wait);
    }

    /** Forgets a request. */
    cancel() {
        clearTimeout(this.#timer);
        this.#timer = null;
    }

    #run() {
        // It was cancelled meanwhile.
        if (this.#timer === null) return;
        this.#timer = null;
        this.#actedAt = performance.now();
        this.#act();
    }
}
