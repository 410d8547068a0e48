// SPDX-License-Identifier: Apache-2.0
// The table of the instances on the overview.

import { el, setText } from './dom.js';
import { setAge } from './clock.js';
import { icon, rank } from './roles.js';
import { instanceAddress } from './route.js';
import { VirtualList } from './virtual.js';
import { counted, words } from './format.js';

/** The columns: name, heading, and the comparison of two instances. */
export const COLUMNS = [
    { name: 'role', title: 'Role', compare: (a, b) => rank(a.role) - rank(b.role) },
    { name: 'id', title: 'Instance', compare: () => 0 },
    { name: 'address', title: 'Addresses', compare: (a, b) => compareText(firstAddress(a), firstAddress(b)) },
    { name: 'place', title: 'Where', compare: (a, b) => compareText(place(a), place(b)) },
    { name: 'since', title: 'For', compare: (a, b) => (b.sinceMs ?? 0) - (a.sinceMs ?? 0) },
    { name: 'why', title: 'Why', compare: (a, b) => compareText(why(a), why(b)) },
    { name: 'notes', title: 'Notes', compare: (a, b) => noteCount(b) - noteCount(a) },
];

const compareText = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const firstAddress = (item) => item.addresses[0]?.cidr ?? '';
const place = (item) =>
    [item.netns, item.interface, item.vrid === null ? null : `VRID ${item.vrid}`].filter(Boolean).join(' · ');
const why = (item) => item.reason ?? item.cause_text ?? words(item.trigger);
const noteCount = (item) => item.findings.length + item.failures.length;

function notes(item) {
    const texts = [];
    if (item.findings.length > 0)
        texts.push(item.findings.length === 1 ? words(item.findings[0]) : counted(item.findings.length, 'finding'));
    const failing = item.failures.find((one) => !item.findings.includes(`${one.stage}-failed`));
    if (failing) texts.push(`${failing.stage} fails`);
    if (item.silenced_until) texts.push('silenced');
    return texts.join(', ');
}

/** A copy of `items` in the order of a column; equal ones in the order of their ids. */
export function sorted(items, column, isReversed) {
    const { compare } = COLUMNS.find((one) => one.name === column) ?? COLUMNS[0];
    const sign = isReversed ? -1 : 1;
    return [...items].sort(
        (a, b) => sign * (compare(a, b) || 0) || (column === 'id' ? sign : 1) * compareText(a.sortKey, b.sortKey),
    );
}

/** The table. `onSort(column)` is called when a heading is used. */
export class InstanceTable {
    #list;
    #heads;
    #table;

    constructor(onSort) {
        this.#heads = COLUMNS.map(({ name, title }) =>
            el(
                'div',
                { role: 'columnheader', class: `cell c-${name}` },
                el(
                    'button',
                    { type: 'button', class: 'sort', onclick: () => onSort(name) },
                    title,
                    el('span', { class: 'arrow', 'aria-hidden': 'true' }),
                ),
            ),
        );
        const body = el('div', { class: 'rows', role: 'rowgroup' });
        this.#table = el(
            'div',
            { class: 'grid-table', role: 'table', 'aria-label': 'Instances', 'aria-colcount': COLUMNS.length },
            el(
                'div',
                { role: 'rowgroup', class: 'grid-head' },
                el('div', { role: 'row', class: 'grid-row', 'aria-rowindex': 1 }, this.#heads),
            ),
            body,
        );
        this.element = this.#table;
        this.#list = new VirtualList(body, makeRow, bindRow, (item) => item.id);
    }

    close() {
        this.#list.close();
    }

    /** Shows these instances, which are sorted by `column`. */
    show(items, column, isReversed) {
        COLUMNS.forEach(({ name }, index) => {
            const order = name !== column ? 'none' : isReversed ? 'descending' : 'ascending';
            if (this.#heads[index].getAttribute('aria-sort') !== order)
                this.#heads[index].setAttribute('aria-sort', order);
        });
        this.#table.setAttribute('aria-rowcount', items.length + 1);
        this.#list.show(items);
    }
}

function makeRow() {
    const cells = Object.fromEntries(
        COLUMNS.map(({ name }) => [name, el('div', { role: 'cell', class: `cell c-${name}` })]),
    );
    const role = el('span', { class: 'role' });
    cells.role.append(role);
    const link = el('a', { class: 'outside' });
    const name = el('bdi', { class: 'outside faint' });
    cells.id.append(link, name);
    const texts = Object.fromEntries(
        ['address', 'place', 'why', 'notes'].map((key) => [key, el('bdi', { class: 'outside' })]),
    );
    for (const [key, element] of Object.entries(texts)) cells[key].append(element);
    const time = el('time', { 'data-form': 'short' });
    cells.since.append(time);
    const element = el('div', { role: 'row', class: 'grid-row' }, Object.values(cells));
    return { element, role, link, name, texts, time, shownRole: null, shownId: null };
}

function bindRow(row, item, index) {
    row.element.setAttribute('aria-rowindex', index + 2);
    if (row.shownRole !== item.role) {
        row.shownRole = item.role;
        row.role.className = `role role-${item.role}`;
        row.role.replaceChildren(icon(item.role), item.role);
    }
    setText(row.link, item.id);
    if (row.shownId !== item.id) {
        row.shownId = item.id;
        row.link.href = instanceAddress(item.id);
    }
    setText(row.name, item.name === item.id ? '' : ` ${item.name}`);
    const more = item.addresses.length > 1 ? ` +${item.addresses.length - 1}` : '';
    setText(row.texts.address, `${firstAddress(item)}${more}`);
    setText(row.texts.place, place(item));
    setText(row.texts.why, why(item));
    setText(row.texts.notes, notes(item));
    setAge(row.time, item.sinceMs);
}
