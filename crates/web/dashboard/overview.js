// SPDX-License-Identifier: Apache-2.0
// The overview: what needs attention, the number of instances with each role, the map and the table.

import { el, renew, setText } from './dom.js';
import { InstanceMap } from './map.js';
import { COLUMNS, InstanceTable, sorted } from './instance-table.js';
import { ROLES, icon, meaning } from './roles.js';
import { address, open, refine } from './route.js';
import { attention, attentionMark } from './attention.js';
import { Paced } from './frames.js';
import { count, counted } from './format.js';
import { needsAttention, store } from './store.js';

/** The shortest time between two computations of the lists, while events arrive. */
const LIST_INTERVAL_MS = 200;

/** The view. It reads its parameters from the route: `q`, `role`, `origin`, `only`, `sort`, `dir`. */
export class Overview {
    title = 'Overview';
    #filter;
    /** Many events change many instances: the lists are computed a few times a second. */
    #paced = new Paced(LIST_INTERVAL_MS, () => {
        if (!this.element.isConnected) return;
        this.#showSummary();
        this.#showLists();
    });
    #attentionMark = null;

    constructor(route) {
        this.#build();
        this.setRoute(route);
    }

    #build() {
        this.attention = el('section', { class: 'attention', 'aria-labelledby': 'h-attention' });
        this.roleTiles = [null, ...ROLES].map((role) => this.#tile(role));
        const tiles = this.roleTiles.map((tile) => tile.element);
        this.tiles = el('div', { class: 'tiles', role: 'group', 'aria-label': 'Filter by role' }, tiles);
        this.search = el('input', {
            type: 'search',
            id: 'search',
            placeholder: 'id, name, address, namespace, link',
            autocomplete: 'off',
            spellcheck: 'false',
            oninput: () => this.#refine({ q: this.search.value }),
        });
        this.origin = el(
            'select',
            { id: 'origin', onchange: () => this.#go({ origin: this.origin.value }) },
            [
                ['', 'all origins'],
                ['neutron', 'neutron'],
                ['keepalived', 'keepalived'],
                ['vipwatch', 'vipwatch'],
            ].map(([value, text]) => el('option', { value }, text)),
        );
        this.only = el('input', {
            type: 'checkbox',
            id: 'only',
            onchange: () => this.#go({ only: this.only.checked ? 'problems' : '' }),
        });
        this.order = el(
            'select',
            { id: 'order', onchange: () => this.#go({ sort: this.order.value, dir: '' }) },
            COLUMNS.map(({ name, title }) => el('option', { value: name }, title)),
        );
        this.total = el('p', { class: 'total', role: 'status' });
        this.map = new InstanceMap();
        this.table = new InstanceTable((column) => this.#sortBy(column));
        this.empty = el('p', { class: 'empty', hidden: true });
        this.element = el(
            'div',
            { class: 'view' },
            el('h1', { class: 'hidden-text' }, 'Overview'),
            this.attention,
            el(
                'section',
                { 'aria-label': 'Instances' },
                this.tiles,
                el(
                    'search',
                    { class: 'toolbar' },
                    el('label', { class: 'field grow' }, el('span', { class: 'hidden-text' }, 'Search'), this.search),
                    el('label', { class: 'field' }, el('span', { class: 'hidden-text' }, 'Origin'), this.origin),
                    el('label', { class: 'field check' }, this.only, 'only with problems'),
                    el('label', { class: 'field narrow-only' }, 'Order', this.order),
                    this.total,
                ),
                this.map.element,
                this.table.element,
                this.empty,
            ),
        );
    }

    /** The element that the key `/` focuses. */
    get searchField() {
        return this.search;
    }

    setRoute({ parameters }) {
        const role = parameters.getAll('role').filter((one) => ROLES.includes(one));
        const column = COLUMNS.some(({ name }) => name === parameters.get('sort')) ? parameters.get('sort') : 'role';
        this.#filter = {
            q: parameters.get('q') ?? '',
            role,
            origin: parameters.get('origin') ?? '',
            only: parameters.get('only') === 'problems' ? 'problems' : '',
            sort: column === 'role' ? '' : column,
            dir: parameters.get('dir') === 'desc' ? 'desc' : '',
        };
        if (this.search.value !== this.#filter.q) this.search.value = this.#filter.q;
        this.origin.value = this.#filter.origin;
        this.only.checked = this.#filter.only !== '';
        this.order.value = column;
        this.update(new Set(['instances', 'findings', 'status', 'targets']));
    }

    #go(change) {
        open(address('overview', null, { ...this.#filter, ...change }));
    }

    #refine(change) {
        this.#filter = { ...this.#filter, ...change };
        refine(this.#filter);
        this.#showLists();
    }

    #sortBy(column) {
        const isSame = column === (this.#filter.sort || 'role');
        this.#go({ sort: column === 'role' ? '' : column, dir: isSame && this.#filter.dir === '' ? 'desc' : '' });
    }

    #toggle(role) {
        const has = this.#filter.role.includes(role);
        this.#go({
            role:
                role === null
                    ? []
                    : has
                      ? this.#filter.role.filter((one) => one !== role)
                      : [...this.#filter.role, role],
        });
    }

    update(parts) {
        if (parts.has('instances') || parts.has('findings') || parts.has('status') || parts.has('targets'))
            this.#paced.request();
    }

    close() {
        this.#paced.cancel();
        this.map.close();
        this.table.close();
    }

    #matches(item) {
        const { q, role, origin, only } = this.#filter;
        return (
            (role.length === 0 || role.includes(item.role)) &&
            (origin === '' || item.origin === origin) &&
            (only === '' || needsAttention(item)) &&
            q
                .toLowerCase()
                .split(/\s+/)
                .every((word) => item.searchText.includes(word))
        );
    }

    #showSummary() {
        const numbers = Object.fromEntries(ROLES.map((role) => [role, 0]));
        for (const item of store.instances.values()) if (item.role in numbers) numbers[item.role] += 1;
        for (const { role, element, number } of this.roleTiles) {
            const size = role === null ? store.instances.size : numbers[role];
            const isPressed = role === null ? this.#filter.role.length === 0 : this.#filter.role.includes(role);
            setText(number, count(size));
            element.setAttribute('aria-pressed', String(isPressed));
            element.toggleAttribute('data-zero', size === 0);
        }
        const mark = attentionMark();
        if (mark === this.#attentionMark) return;
        this.#attentionMark = mark;
        renew(this.attention, attention());
    }

    /** The button that shows the number of instances with a role, and filters by it. */
    #tile(role) {
        const number = el('span', { class: 'tile-number' }, '0');
        const element = el(
            'button',
            {
                type: 'button',
                class: `tile tile-${role ?? 'all'}`,
                'data-role': role ?? 'all',
                title: role === null ? null : meaning(role),
                'aria-pressed': 'false',
                onclick: () => this.#toggle(role),
            },
            number,
            el('span', { class: 'tile-label' }, role === null ? null : icon(role), role ?? 'instances'),
        );
        return { role, element, number };
    }

    #showLists() {
        const all = [...store.instances.values()];
        const column = this.#filter.sort || 'role';
        const items = sorted(
            all.filter((item) => this.#matches(item)),
            column,
            this.#filter.dir === 'desc',
        );
        this.map.show(items);
        this.table.show(items, column, this.#filter.dir === 'desc');
        setText(
            this.total,
            items.length === all.length
                ? counted(all.length, 'instance')
                : `${count(items.length)} of ${counted(all.length, 'instance')}`,
        );
        this.table.element.hidden = items.length === 0;
        this.map.element.hidden = items.length === 0;
        this.empty.hidden = items.length > 0;
        setText(
            this.empty,
            !store.areInstancesRead
                ? 'Reading the instances…'
                : all.length === 0
                  ? 'This node has no instances. `vipwatch discover` shows where it looks for them.'
                  : 'No instance matches the filter.',
        );
    }
}
