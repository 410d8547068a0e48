// SPDX-License-Identifier: Apache-2.0
// One row in the list of transitions: a transition, or a time that is not recorded.

import { el, outside, replace, setText } from './dom.js';
import { now, parse, timeElement } from './clock.js';
import { icon } from './roles.js';
import { instanceAddress } from './route.js';
import { counted, dayTime, micros, words } from './format.js';

const GAP_REASONS = {
    stopped: 'no node ran',
    killed: 'the node was killed',
    'not-written': 'the file could not be written',
    retention: 'old entries were deleted',
};

/** A link to an instance. */
export const instanceLink = (id) => el('a', { class: 'outside', href: instanceAddress(id) }, id);

/** Transitions in the order of their numbers, because a clock can be set back; gaps have no number, only a time. */
export function newestFirst(items, gaps) {
    const rows = [];
    const rest = gaps.map((gap) => ({ ...gap, atMs: parse(gap.until) })).sort((a, b) => a.atMs - b.atMs);
    for (const item of items.toReversed()) {
        while (rest.length > 0 && rest.at(-1).atMs >= item.atMs) rows.push(rest.pop());
        rows.push(item);
    }
    return [...rows, ...rest.reverse()];
}

/** An empty row. */
export function makeRow() {
    const cells = ['when', 'id', 'change', 'why', 'slow'].map((name) =>
        el('div', { role: 'cell', class: `cell h-${name}` }),
    );
    const element = el('div', { role: 'row', class: 'grid-row' }, cells);
    // The link stays when the row gets another item, and so does the focus.
    return { element, cells, link: el('a', { class: 'outside' }), mark: null };
}

/** Identifies an item of the list. */
export const keyOf = (item) => (item.type === 'gap' ? `gap ${item.from}` : item.seq);

/** Fills a row. */
export function bindRow(row, item, index) {
    row.element.setAttribute('aria-rowindex', index + 2);
    // A row with the same content stays, and so does the selected text.
    const today = new Date(now()).toDateString();
    const mark = JSON.stringify([today, item]);
    if (row.mark === mark) return;
    row.mark = mark;
    const [when, id, change, why, slow] = row.cells;
    row.element.classList.toggle('gap-row', item.type === 'gap');
    if (item.type === 'gap') {
        delete row.element.dataset.seq;
        replace(when, timeElement(item.atMs));
        replace(id);
        replace(change, 'not recorded');
        replace(
            why,
            `${GAP_REASONS[item.reason] ?? words(item.reason)} from ${dayTime(parse(item.from), now())}${item.count === null ? '' : `, ${counted(item.count, 'transition')} lost`}`,
        );
        replace(slow);
        return;
    }
    row.element.dataset.seq = item.seq;
    replace(when, timeElement(item.atMs, true));
    setText(row.link, item.id);
    row.link.href = instanceAddress(item.id);
    if (row.link.parentNode === null) id.append(row.link);
    replace(change, el('span', { class: `role role-${item.to}` }, icon(item.to), `${item.from ?? '–'} → ${item.to}`));
    replace(why, outside(item.cause_text ?? words(item.trigger)));
    const slowest = Object.entries(item.latencies).sort((a, b) => b[1] - a[1])[0];
    replace(slow, slowest ? `${slowest[0]} ${micros(slowest[1])}` : '–');
}
