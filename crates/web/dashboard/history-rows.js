// One row in the list of transitions: a transition, or a time that is not recorded.

import { el, outside, replace } from './dom.js';
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

/** An empty row. */
export function makeRow() {
    const cells = ['when', 'id', 'change', 'why', 'slow'].map((name) =>
        el('div', { role: 'cell', class: `cell h-${name}` }),
    );
    return { element: el('div', { role: 'row', class: 'grid-row' }, cells), cells };
}

/** Fills a row. */
export function bindRow(row, item, index) {
    const [when, id, change, why, slow] = row.cells;
    row.element.setAttribute('aria-rowindex', index + 2);
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
    replace(id, instanceLink(item.id));
    replace(change, el('span', { class: `role role-${item.to}` }, icon(item.to), `${item.from ?? '–'} → ${item.to}`));
    replace(why, outside(item.cause_text ?? words(item.trigger)));
    const slowest = Object.entries(item.latencies).sort((a, b) => b[1] - a[1])[0];
    replace(slow, slowest ? `${slowest[0]} ${micros(slowest[1])}` : '–');
}
