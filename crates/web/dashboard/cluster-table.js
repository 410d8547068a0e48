// SPDX-License-Identifier: Apache-2.0
// The table of the groups of the cluster.

import { el, setText } from './dom.js';
import { words } from './format.js';
import { instanceAddress } from './route.js';
import { VirtualList } from './virtual.js';
import { ownInstance } from './cluster-store.js';

const COLUMNS = [
    ['state', 'State'],
    ['group', 'Group'],
    ['primary', 'Primary'],
    ['backup', 'Backup'],
    ['addresses', 'Addresses'],
    ['notes', 'Details'],
];

/** The live nodes that are backup. */
const backups = (group) =>
    group.members
        .filter((member) => member.role === 'backup' && member.node_state === 'live')
        .map((member) => member.node)
        .join(', ');

/** Findings, and members that are neither a live primary nor a live backup. */
function notes(group) {
    const members = group.members
        .filter((member) => member.node_state !== 'live' || !['primary', 'backup'].includes(member.role))
        .map((member) =>
            member.node_state === 'live'
                ? `${member.node} ${member.role}`
                : `${member.node} ${member.node_state} (was ${member.role})`,
        );
    return [...group.findings.map(words), ...members].join('; ');
}

export class GroupTable {
    #list;
    #table;

    constructor() {
        const body = el('div', { class: 'rows', role: 'rowgroup' });
        const heads = COLUMNS.map(([name, title]) =>
            el('div', { role: 'columnheader', class: `cell g-${name}` }, title),
        );
        this.#table = el(
            'div',
            {
                class: 'grid-table group-table',
                role: 'table',
                'aria-label': 'Groups',
                'aria-colcount': COLUMNS.length,
            },
            el(
                'div',
                { role: 'rowgroup', class: 'grid-head' },
                el('div', { role: 'row', class: 'grid-row', 'aria-rowindex': 1 }, heads),
            ),
            body,
        );
        this.element = this.#table;
        this.#list = new VirtualList(body, makeRow, bindRow, (group) => group.id);
    }

    close() {
        this.#list.close();
    }

    show(groups) {
        this.#table.setAttribute('aria-rowcount', groups.length + 1);
        this.#list.show(groups);
    }
}

function makeRow() {
    const cells = Object.fromEntries(
        COLUMNS.map(([name]) => [name, el('div', { role: 'cell', class: `cell g-${name}` })]),
    );
    const state = el('span', { class: 'state' });
    cells.state.append(state);
    const link = el('a', { class: 'outside' });
    const name = el('bdi', { class: 'outside' });
    cells.group.append(link, name);
    const texts = Object.fromEntries(
        ['primary', 'backup', 'addresses', 'notes'].map((key) => [key, el('bdi', { class: 'outside' })]),
    );
    for (const [key, element] of Object.entries(texts)) cells[key].append(element);
    return { element: el('div', { role: 'row', class: 'grid-row' }, Object.values(cells)), state, link, name, texts };
}

function bindRow(row, group, index) {
    row.element.setAttribute('aria-rowindex', index + 2);
    row.state.className = `state state-${group.state}`;
    setText(row.state, words(group.state));
    // A group with an instance on this node leads to it.
    const own = ownInstance(group);
    row.link.hidden = own === null;
    row.name.hidden = own !== null;
    setText(row.link, own === null ? '' : group.id);
    setText(row.name, own === null ? group.id : '');
    if (own === null) row.link.removeAttribute('href');
    else row.link.href = instanceAddress(own);
    const more = group.addresses.length > 1 ? ` +${group.addresses.length - 1}` : '';
    setText(row.texts.primary, group.primaries.join(', ') || '–');
    setText(row.texts.backup, backups(group) || '–');
    setText(row.texts.addresses, `${group.addresses[0] ?? '–'}${more}`);
    setText(row.texts.notes, notes(group));
}
