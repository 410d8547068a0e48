// SPDX-License-Identifier: Apache-2.0
// The timeline of one instance: a line for each role, so that it is readable without colour. It can be zoomed with the
// wheel, with buttons and with keys.

import { el, replace, setText, svg } from './dom.js';
import { clockTime, dayTime, span } from './format.js';
import { now } from './clock.js';
import { isKnown } from './roles.js';

const LANES = ['primary', 'partial', 'backup', 'unknown', 'fault'];
const LANE_HEIGHT = 22;
const LEFT = 68;
const AXIS_HEIGHT = 22;
const HEIGHT = LANES.length * LANE_HEIGHT + AXIS_HEIGHT;
const MIN_SPAN_MS = 20;
const MAX_SPAN_MS = 10 * 365 * 86_400_000;
const STEPS_MS = [
    1, 5, 10, 50, 100, 500, 1e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 18e5, 36e5, 108e5, 216e5, 432e5, 864e5, 6048e5, 2592e6,
    7776e6, 31536e6,
];

/** The timeline. `onZoom(from, to)` is called with the shown time, or with nulls if all of it is shown. */
export class Timeline {
    #segments = [];
    #gaps = [];
    #view = null;
    #onZoom;
    #width = 0;
    #sizes = new ResizeObserver(() => this.#render());

    constructor(onZoom) {
        this.#onZoom = onZoom;
        this.drawing = svg('svg', {
            class: 'timeline-drawing',
            height: HEIGHT,
            'aria-hidden': 'true',
            focusable: 'false',
        });
        this.range = el('p', { class: 'timeline-range' });
        // The range moves with the time; a screen reader announces it only after a zoom.
        this.spoken = el('p', { class: 'hidden-text', role: 'status' });
        this.frame = el(
            'div',
            {
                class: 'timeline',
                tabindex: '0',
                role: 'application',
                'aria-label': 'Timeline of the roles',
                'aria-describedby': 'timeline-help',
                onkeydown: (event) => this.#key(event),
            },
            this.drawing,
        );
        this.frame.addEventListener('wheel', (event) => this.#wheel(event), { passive: false });
        this.#drag();
        const button = (text, title, act) =>
            el('button', { type: 'button', class: 'quiet', title, 'aria-label': title, onclick: act }, text);
        this.element = el(
            'div',
            null,
            this.frame,
            el(
                'div',
                { class: 'timeline-tools' },
                button('+', 'Zoom in', () => this.#zoom(0.5)),
                button('−', 'Zoom out', () => this.#zoom(2)),
                button('←', 'Earlier', () => this.#shift(-0.25)),
                button('→', 'Later', () => this.#shift(0.25)),
                button('All', 'Show all', () => this.#setView(null)),
                this.range,
            ),
            this.spoken,
            el(
                'p',
                { id: 'timeline-help', class: 'hidden-text' },
                'Plus and minus zoom, the arrow keys move, Home shows all. The table of transitions has the same as text.',
            ),
        );
        this.#sizes.observe(this.frame);
    }

    close() {
        this.#sizes.disconnect();
    }

    /** Shows these transitions, oldest first, and gaps. `from` and `to` are the wanted limits, or null. */
    show(transitions, gaps, from, to) {
        this.#segments = segments(transitions);
        this.#gaps = gaps.map((gap) => ({ from: Date.parse(gap.from), to: Date.parse(gap.until), reason: gap.reason }));
        this.#view = from !== null && to !== null && to > from ? { from, to } : null;
        this.#render();
    }

    #all() {
        const to = now();
        const first = this.#segments[0]?.from ?? to - 60_000;
        const margin = Math.max(1000, (to - first) * 0.02);
        return { from: first - margin, to };
    }

    #limits() {
        return this.#view ?? this.#all();
    }

    #setView(view) {
        this.#view = view;
        this.#render();
        setText(this.spoken, this.range.textContent);
        this.#onZoom(view?.from ?? null, view?.to ?? null);
    }

    #zoom(factor, center = 0.5) {
        const { from, to } = this.#limits();
        const length = Math.min(MAX_SPAN_MS, Math.max(MIN_SPAN_MS, (to - from) * factor));
        const middle = from + (to - from) * center;
        this.#setView({ from: Math.round(middle - length * center), to: Math.round(middle + length * (1 - center)) });
    }

    #shift(part) {
        const { from, to } = this.#limits();
        const distance = Math.round((to - from) * part);
        this.#setView({ from: Math.round(from) + distance, to: Math.round(to) + distance });
    }

    /** The wheel zooms if the timeline has the focus or the control key is pressed; otherwise the page scrolls. */
    #wheel(event) {
        if (!event.ctrlKey && document.activeElement !== this.frame) return;
        event.preventDefault();
        const box = this.frame.getBoundingClientRect();
        const center = Math.min(1, Math.max(0, (event.clientX - box.left - LEFT) / (this.#width - LEFT)));
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.#shift(event.deltaX / 1000);
        else this.#zoom(event.deltaY > 0 ? 1.25 : 0.8, center);
    }

    #drag() {
        let last = null;
        this.frame.addEventListener('pointerdown', (event) => {
            last = event.clientX;
            this.frame.setPointerCapture(event.pointerId);
        });
        this.frame.addEventListener('pointermove', (event) => {
            if (last === null || event.clientX === last) return;
            this.#shift((last - event.clientX) / (this.#width - LEFT));
            last = event.clientX;
        });
        this.frame.addEventListener('pointerup', () => {
            last = null;
        });
        this.frame.addEventListener('pointercancel', () => {
            last = null;
        });
    }

    #key(event) {
        const acts = {
            '+': () => this.#zoom(0.5),
            '=': () => this.#zoom(0.5),
            '-': () => this.#zoom(2),
            ArrowUp: () => this.#zoom(0.5),
            ArrowDown: () => this.#zoom(2),
            ArrowLeft: () => this.#shift(-0.1),
            ArrowRight: () => this.#shift(0.1),
            Home: () => this.#setView(null),
            0: () => this.#setView(null),
        };
        if (!(event.key in acts) || event.ctrlKey || event.metaKey || event.altKey) return;
        acts[event.key]();
        event.preventDefault();
    }

    #render() {
        this.#width = this.frame.clientWidth;
        if (this.#width < 50) return;
        const { from, to } = this.#limits();
        const x = (time) => LEFT + ((time - from) / (to - from)) * (this.#width - LEFT);
        this.drawing.setAttribute('width', this.#width);
        this.drawing.setAttribute('viewBox', `0 0 ${this.#width} ${HEIGHT}`);
        replace(
            this.drawing,
            lanes(this.#width),
            this.#axis(from, to, x),
            this.#hatched(from, to, x),
            this.#bars(from, to, x),
        );
        setText(
            this.range,
            `${dayTime(from, now(), to - from < 10_000)} – ${dayTime(to, now(), to - from < 10_000)} (${spanText(to - from)})`,
        );
    }

    #axis(from, to, x) {
        const step = STEPS_MS.find((one) => (to - from) / one <= (this.#width - LEFT) / 90) ?? STEPS_MS.at(-1);
        // Whole steps in the time zone of the browser.
        const offset = new Date(from).getTimezoneOffset() * 60_000;
        const marks = [];
        for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to && marks.length < 40; at += step) {
            const text =
                step >= 864e5
                    ? dayTime(at, now()).replace(/ ?\d\d:\d\d:\d\d$/, '') || 'today'
                    : clockTime(at, step < 1000);
            marks.push(svg('line', { class: 'tl-tick', x1: x(at), x2: x(at), y1: 0, y2: HEIGHT - AXIS_HEIGHT }));
            // A text at the edge would be cut off.
            if (x(at) < this.#width - 36)
                marks.push(svg('text', { class: 'tl-text', x: x(at), y: HEIGHT - 6, 'text-anchor': 'middle' }, text));
        }
        return marks;
    }

    #hatched(from, to, x) {
        return this.#gaps
            .filter((gap) => gap.to > from && gap.from < to)
            .map((gap) =>
                svg(
                    'rect',
                    {
                        class: 'tl-gap',
                        x: Math.max(LEFT, x(gap.from)),
                        y: 0,
                        width: Math.max(1, x(Math.min(to, gap.to)) - Math.max(LEFT, x(gap.from))),
                        height: HEIGHT - AXIS_HEIGHT,
                    },
                    svg('title', null, `not recorded: ${gap.reason}`),
                ),
            );
    }

    /** At most one bar for each pixel: of several changes within a pixel, the first is drawn. */
    #bars(from, to, x) {
        const bars = [];
        let drawnTo = -1;
        for (const { role, from: begin, to: end, title } of this.#segments) {
            const stop = end ?? Math.max(now(), begin);
            if (stop < from || begin > to || role === 'removed') continue;
            const left = Math.max(LEFT, x(begin));
            const right = Math.min(this.#width, x(stop));
            if (right <= drawnTo) continue;
            drawnTo = Math.max(right, left + 1);
            const lane = Math.max(0, LANES.indexOf(role));
            bars.push(
                svg(
                    'rect',
                    {
                        class: `tl-bar fill-${isKnown(role) ? role : 'unknown'}`,
                        x: left,
                        y: lane * LANE_HEIGHT + 4,
                        width: Math.max(1.5, right - left),
                        height: LANE_HEIGHT - 8,
                        rx: 2,
                    },
                    svg('title', null, title),
                ),
            );
        }
        return bars;
    }
}

function lanes(width) {
    return LANES.flatMap((role, index) => [
        svg('line', {
            class: 'tl-lane',
            x1: LEFT,
            x2: width,
            y1: (index + 0.5) * LANE_HEIGHT,
            y2: (index + 0.5) * LANE_HEIGHT,
        }),
        svg('text', { class: 'tl-text', x: 0, y: (index + 0.5) * LANE_HEIGHT + 4 }, role),
    ]);
}

function spanText(milliseconds) {
    return milliseconds < 10_000 ? `${Math.round(milliseconds)} ms` : span(milliseconds);
}

/** The role from each transition to the next one. */
export function segments(transitions) {
    return transitions.map((item, index) => {
        const next = transitions[index + 1];
        const end = next ? Math.max(item.atMs, next.atMs) : null;
        const why = item.cause_text ?? item.trigger;
        return {
            role: item.to,
            from: item.atMs,
            to: end,
            title: `${item.to} from ${clockTime(item.atMs, true)}: ${why}`,
        };
    });
}
