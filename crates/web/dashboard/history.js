// SPDX-License-Identifier: Apache-2.0
// The history of the node: transitions, instances that change often, time without a primary.

import { el, panel, renew, setText, table } from './dom.js';
import { ageElement, now, parse, toLocal, toUtc } from './clock.js';
import { fetchDocument } from './link.js';
import { address, open, refine } from './route.js';
import { bindRow, instanceLink, keyOf, makeRow, newestFirst } from './history-rows.js';
import { count, counted, dayTime, duration, span } from './format.js';
import { flapRanking, gapTime, outages } from './outages.js';
import { store } from './store.js';
import { MAX_TRANSITIONS, TransitionLog } from './transition-log.js';
import { Paced } from './frames.js';
import { VirtualList } from './virtual.js';

const ITEMS = 2000;
const RANKED = 6;
const TYPING_DELAY_MS = 300;
const SHOW_INTERVAL_MS = 250;
const PERIODS = [
    ['', 'newest transitions'],
    ['15m', 'last 15 minutes'],
    ['1h', 'last hour'],
    ['24h', 'last 24 hours'],
    ['7d', 'last 7 days'],
];
const PERIOD_MS = { '15m': 9e5, '1h': 36e5, '24h': 864e5, '7d': 6048e5 };

/** The view. Parameters: `id` (an id, its beginning, or an address), `last`, `since`, `until`. */
export class HistoryView {
    title = 'History';
    #filter = null;
    #log = new TransitionLog();
    #problem = null;
    #paced = new Paced(SHOW_INTERVAL_MS, () => {
        if (this.element.isConnected) this.#show();
    });
    #typing = null;
    #request = 0;
    /** Whether the selected time has older transitions that were not read. */
    #isTruncated = false;

    constructor(route) {
        this.id = el('input', {
            type: 'search',
            id: 'history-id',
            placeholder: 'id, beginning of an id, or address',
            autocomplete: 'off',
            spellcheck: 'false',
            oninput: () => this.#typed(),
        });
        this.period = el(
            'select',
            { id: 'history-last', onchange: () => this.#go({ last: this.period.value, since: '', until: '' }) },
            PERIODS.map(([value, text]) => el('option', { value }, text)),
        );
        const time = (name) =>
            el('input', {
                type: 'datetime-local',
                id: `history-${name}`,
                step: '1',
                onchange: (event) => this.#go({ last: '', [name]: toUtc(event.target.value) }),
            });
        this.since = time('since');
        this.until = time('until');
        this.total = el('p', { class: 'total', role: 'status' });
        this.notice = el('p', { class: 'notice', role: 'alert', hidden: true });
        this.flaps = el('div');
        this.outages = el('div');
        this.#buildTable();
        this.element = el(
            'div',
            { class: 'view' },
            el('h1', null, 'History'),
            el(
                'search',
                { class: 'toolbar' },
                el('label', { class: 'field grow' }, el('span', { class: 'hidden-text' }, 'Instance'), this.id),
                el('label', { class: 'field' }, el('span', { class: 'hidden-text' }, 'Period'), this.period),
                el('label', { class: 'field' }, 'from', this.since),
                el('label', { class: 'field' }, 'until', this.until),
                this.total,
            ),
            this.notice,
            el(
                'div',
                { class: 'columns' },
                panel('Most changes', null, this.flaps),
                panel('Time without a primary, as far as this node knows', null, this.outages),
            ),
            this.table,
        );
        this.setRoute(route);
    }

    get searchField() {
        return this.id;
    }

    #buildTable() {
        const heads = ['When', 'Instance', 'Change', 'Why', 'Slowest stage'];
        this.rows = el('div', { class: 'rows', role: 'rowgroup' });
        this.table = el(
            'div',
            { class: 'grid-table history-table', role: 'table', 'aria-label': 'Transitions, newest first' },
            el(
                'div',
                { role: 'rowgroup', class: 'grid-head' },
                el(
                    'div',
                    { role: 'row', class: 'grid-row', 'aria-rowindex': 1 },
                    heads.map((text) => el('div', { role: 'columnheader', class: 'cell' }, text)),
                ),
            ),
            this.rows,
        );
        this.list = new VirtualList(this.rows, makeRow, bindRow, keyOf);
    }

    setRoute({ parameters }) {
        const filter = {
            id: parameters.get('id') ?? '',
            last: Object.hasOwn(PERIOD_MS, parameters.get('last')) ? parameters.get('last') : '',
            since: parse(parameters.get('since')) === null ? '' : parameters.get('since'),
            until: parse(parameters.get('until')) === null ? '' : parameters.get('until'),
        };
        if (this.id.value !== filter.id) this.id.value = filter.id;
        this.period.value = filter.last;
        this.since.value = toLocal(filter.since);
        this.until.value = toLocal(filter.until);
        if (JSON.stringify(filter) === JSON.stringify(this.#filter)) return;
        this.#filter = filter;
        this.#read();
    }

    #go(change) {
        open(address('history', null, { ...this.#filter, ...change }));
    }

    #typed() {
        clearTimeout(this.#typing);
        this.#typing = setTimeout(() => {
            this.#filter = { ...this.#filter, id: this.id.value.trim() };
            refine(this.#filter);
            this.#read();
        }, TYPING_DELAY_MS);
    }

    get #isFiltered() {
        return Object.values(this.#filter).some((value) => value !== '');
    }

    get #limits() {
        const { last, since, until } = this.#filter;
        const from = last !== '' ? now() - PERIOD_MS[last] : parse(since);
        return { from, until: parse(until) };
    }

    /** Reads the selected part of the history. Without a filter, the page has the newest transitions already. */
    async #read() {
        this.#request += 1;
        const request = this.#request;
        this.#log = new TransitionLog();
        this.#problem = null;
        this.#isTruncated = false;
        if (this.#isFiltered) {
            const { from, until } = this.#limits;
            const query = new URLSearchParams({ limit: ITEMS });
            if (this.#filter.id !== '') query.set('id', this.#filter.id);
            if (from !== null) query.set('since', new Date(from).toISOString());
            if (until !== null) query.set('until', new Date(until).toISOString());
            try {
                const document = await fetchDocument(`/v1/history?${query}`);
                if (request !== this.#request) return;
                this.#log.merge(document.epoch, document.items);
                this.#isTruncated = document.items.length >= ITEMS;
            } catch (error) {
                if (request !== this.#request) return;
                this.#problem = error.problem;
            }
        }
        this.#show();
    }

    update(parts) {
        if (!parts.has('history') && !parts.has('findings')) return;
        this.#paced.request();
    }

    close() {
        this.#paced.cancel();
        clearTimeout(this.#typing);
        this.list.close();
    }

    /** The transitions of the filter: those that were read, and newer ones from events. */
    #current() {
        if (!this.#isFiltered) return store.log;
        const { from, until } = this.#limits;
        const wanted = this.#filter.id;
        const ids = new Set(this.#log.items.map((item) => item.id));
        // As on the node: an id that exists is not the beginning of others.
        const isExact = store.instances.has(wanted) || ids.has(wanted);
        const isNamed = (id) => (isExact ? id === wanted : ids.has(id) || id.startsWith(wanted));
        const newest = this.#log.items.at(-1)?.seq ?? -1;
        const isSelected = (item) => wanted === '' || isNamed(item.id);
        const isWanted = (item) =>
            isSelected(item) &&
            (item.seq <= newest || ((from === null || item.atMs >= from) && (until === null || item.atMs <= until)));
        const fresh = this.#problem === null ? store.log.items.filter(isWanted) : [];
        if (fresh.length > 0) this.#log.merge(store.log.epoch, fresh);
        return this.#log;
    }

    #show() {
        const { items, gaps } = this.#current();
        const rows = newestFirst(items, gaps);
        this.table.setAttribute('aria-rowcount', rows.length + 1);
        this.table.hidden = rows.length === 0;
        this.list.show(rows);
        const problem = this.#problem ?? (this.#isFiltered ? null : store.historyProblem);
        this.notice.hidden = problem === null;
        if (problem !== null) setText(this.notice, `${problem.detail}${problem.hint ? ` (${problem.hint})` : ''}`);
        setText(
            this.total,
            !store.isLoaded
                ? 'Reading…'
                : `${counted(items.length, 'transition')}${this.#isCut(items) ? ' (the newest)' : ''}`,
        );
        this.#showFigures(items, gaps);
    }

    #isCut(items) {
        return this.#isTruncated || items.length >= MAX_TRANSITIONS;
    }

    #showFigures(items, gaps) {
        const limits = this.#limits;
        const until = limits.until ?? now();
        const isCut = this.#isCut(items);
        const from = (isCut ? null : limits.from) ?? items[0]?.atMs ?? until;
        const ranking = flapRanking(items).slice(0, RANKED);
        renew(
            this.flaps,
            ranking.length === 0
                ? el('p', { class: 'faint' }, 'No change of a role in this time.')
                : table(
                      'Instances with the most changes',
                      ['Instance', 'Changes', 'Last'],
                      ranking.map((one) => [
                          instanceLink(one.id),
                          count(one.changes),
                          [ageElement(one.lastMs, 'short'), ' ago'],
                      ]),
                  ),
        );
        const rows = outages(items, store.findings.values(), from, until).slice(0, RANKED);
        const unrecorded = gapTime(gaps, from, until);
        renew(
            this.outages,
            rows.length === 0
                ? el('p', { class: 'faint' }, 'No transition in this time.')
                : table(
                      'Time in each state',
                      ['Instance', 'No primary', 'Fault here', 'Primary here', 'Backup here'],
                      rows.map((one) => [
                          instanceLink(one.id),
                          el(
                              'strong',
                              { class: one.without > 0 ? 'bad' : '' },
                              one.without === 0
                                  ? '–'
                                  : one.without < 10_000
                                    ? `${count(one.without)} ms`
                                    : span(one.without),
                          ),
                          duration(one.broken),
                          duration(one.here),
                          duration(one.elsewhere),
                      ]),
                  ),
            el(
                'p',
                { class: 'faint' },
                `From ${dayTime(from, now())} to ${dayTime(until, now())}.`,
                isCut ? ` Older transitions were not read: only the newest ${count(items.length)} count.` : null,
                unrecorded > 0 ? ` ${span(unrecorded)} of it are not recorded.` : null,
            ),
            el(
                'details',
                { id: 'limits' },
                el('summary', null, 'What one node cannot know'),
                el(
                    'p',
                    null,
                    '“No primary” counts only what this node has proof of: the silence of another node before this node took over, and the open finding “no primary”. While this node is backup, another node may be primary: its adverts show that one exists, but not that it forwards traffic. While this node does not run, or its link is down, it knows nothing. For the whole picture, compare the nodes.',
                ),
            ),
        );
    }
}
