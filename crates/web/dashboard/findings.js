// SPDX-License-Identifier: Apache-2.0
// Everything that is wrong: findings, failing targets, problems in files, silences.

import { el, outside, panel, renew, setText, table } from './dom.js';
import { ageElement, parse, timeElement } from './clock.js';
import { address, instanceAddress, open, refine } from './route.js';
import { count, counted, words } from './format.js';
import { findingItem } from './instance-panels.js';
import { SEVERITIES, SEVERITY_MEANINGS, allFindings, severityCounts } from './attention.js';
import { Paced } from './frames.js';
import { store } from './store.js';

const PAGE_ITEMS = 100;
const SHOW_INTERVAL_MS = 500;

/** The view. Parameters: `severity`, `name` (of the finding), `q`. */
export class FindingsView {
    title = 'Findings';
    #filter;
    #shown = PAGE_ITEMS;
    #paced = new Paced(SHOW_INTERVAL_MS, () => {
        if (this.element.isConnected) this.#show(false);
    });
    #mark = '';

    constructor(route) {
        this.search = el('input', {
            type: 'search',
            id: 'finding-search',
            placeholder: 'instance or text',
            autocomplete: 'off',
            spellcheck: 'false',
            oninput: () => this.#refine(this.search.value),
        });
        this.tiles = el('div', { class: 'tiles', role: 'group', 'aria-label': 'Filter by severity' });
        this.name = el('select', { id: 'finding-name', onchange: () => this.#go({ name: this.name.value }) });
        this.total = el('p', { class: 'total', role: 'status' });
        this.list = el('ul', { class: 'findings' });
        this.more = el('button', {
            type: 'button',
            onclick: () => {
                this.#shown += PAGE_ITEMS;
                this.#show(true);
            },
        });
        this.other = el('div', { class: 'columns' });
        this.element = el(
            'div',
            { class: 'view' },
            el('h1', null, 'Findings'),
            this.tiles,
            el(
                'search',
                { class: 'toolbar' },
                el('label', { class: 'field grow' }, el('span', { class: 'hidden-text' }, 'Search'), this.search),
                el('label', { class: 'field' }, el('span', { class: 'hidden-text' }, 'Name'), this.name),
                this.total,
            ),
            this.list,
            this.more,
            this.other,
        );
        this.setRoute(route);
    }

    get searchField() {
        return this.search;
    }

    setRoute({ parameters }) {
        this.#filter = {
            severity: parameters.getAll('severity').filter((one) => SEVERITIES.includes(one)),
            name: parameters.get('name') ?? '',
            q: parameters.get('q') ?? '',
        };
        if (this.search.value !== this.#filter.q) this.search.value = this.#filter.q;
        this.#shown = PAGE_ITEMS;
        this.#show(true);
    }

    #go(change) {
        open(address('findings', null, { ...this.#filter, ...change }));
    }

    #refine(q) {
        this.#filter.q = q;
        refine(this.#filter);
        this.#show(true);
    }

    #toggle(severity) {
        const has = this.#filter.severity.includes(severity);
        this.#go({
            severity: has
                ? this.#filter.severity.filter((one) => one !== severity)
                : [...this.#filter.severity, severity],
        });
    }

    update(parts) {
        if (!['findings', 'status', 'targets'].some((part) => parts.has(part))) return;
        this.#paced.request();
    }

    close() {
        this.#paced.cancel();
    }

    #show(isForced) {
        const all = allFindings();
        // Without a change, the elements stay, and so does the focus.
        const { findings, health } = { findings: store.changes.findings, health: store.status?.health };
        const mark = JSON.stringify([findings, health, store.targets, store.status?.problems, store.status?.silences]);
        if (!isForced && mark === this.#mark) return;
        this.#mark = mark;
        this.#showTiles(all);
        this.#showNames(all);
        const { severity, name, q } = this.#filter;
        const wanted = q.toLowerCase();
        const selected = all.filter(
            (item) =>
                (severity.length === 0 || severity.includes(item.severity)) &&
                (name === '' || item.name === name) &&
                `${item.id ?? ''} ${item.name} ${item.text}`.toLowerCase().includes(wanted),
        );
        const where = (item) =>
            item.id === null
                ? el('span', { class: 'faint' }, 'the node')
                : el('a', { class: 'outside', href: instanceAddress(item.id) }, item.id);
        renew(
            this.list,
            selected.slice(0, this.#shown).map((item) => findingItem(item, where(item))),
            selected.length > 0
                ? null
                : el(
                      'li',
                      { class: 'empty' },
                      !store.areFindingsRead || store.status === null
                          ? 'Reading…'
                          : all.length === 0
                            ? 'No finding: nothing is known to be wrong.'
                            : 'No finding matches the filter.',
                  ),
        );
        this.more.hidden = selected.length <= this.#shown;
        setText(this.more, `Show ${count(Math.min(PAGE_ITEMS, selected.length - this.#shown))} more`);
        setText(
            this.total,
            !store.areFindingsRead
                ? 'Reading…'
                : selected.length === all.length
                  ? counted(all.length, 'finding')
                  : `${count(selected.length)} of ${counted(all.length, 'finding')}`,
        );
        this.#showOther();
    }

    #showTiles(all) {
        const counts = severityCounts(all);
        renew(
            this.tiles,
            SEVERITIES.map((severity) =>
                el(
                    'button',
                    {
                        type: 'button',
                        class: `tile tile-${severity}`,
                        'data-severity': severity,
                        'data-key': severity,
                        'data-zero': counts[severity] === 0 ? 'true' : null,
                        'aria-pressed': String(this.#filter.severity.includes(severity)),
                        onclick: () => this.#toggle(severity),
                    },
                    el('span', { class: 'tile-number' }, count(counts[severity])),
                    el('span', { class: 'tile-label' }, severity),
                    el('span', { class: 'tile-note' }, SEVERITY_MEANINGS[severity]),
                ),
            ),
        );
    }

    #showNames(all) {
        const names = [
            ...new Set([...all.map((item) => item.name), ...(this.#filter.name ? [this.#filter.name] : [])]),
        ].sort();
        // An open list of options stays open if they are the same.
        renew(
            this.name,
            el('option', { value: '' }, 'all names'),
            names.map((name) => el('option', { value: name }, words(name))),
        );
        if (this.name.value !== this.#filter.name) this.name.value = this.#filter.name;
    }

    #showOther() {
        const targets = store.targets.map((target) => [
            [el('span', { class: 'faint' }, `${target.kind} `), outside(target.name)],
            count(target.delivered),
            [
                count(target.pending),
                target.oldest_pending ? [', oldest ', ageElement(parse(target.oldest_pending), 'short')] : null,
            ],
            count(target.failures),
            count(target.given_up + target.dropped),
            target.failing.length === 0
                ? '–'
                : [counted(target.failing.length, 'instance'), ': ', outside(target.failing[0].error)],
        ]);
        const problems = store.status?.problems ?? [];
        const silences = store.status?.silences ?? [];
        renew(
            this.other,
            panel(
                'Deliveries',
                { class: 'panel wide' },
                targets.length === 0
                    ? el('p', { class: 'faint' }, 'No target is configured.')
                    : table(
                          'Targets',
                          ['Target', 'Delivered', 'Pending', 'Failed attempts', 'Given up or dropped', 'Failing now'],
                          targets,
                      ),
            ),
            panel(
                'Problems in files',
                null,
                problems.length < (store.status?.problem_count ?? 0)
                    ? el('p', null, `The first ${count(problems.length)} of ${count(store.status.problem_count)}:`)
                    : null,
                problems.length === 0
                    ? el('p', { class: 'faint' }, 'None.')
                    : el(
                          'ul',
                          { class: 'plain' },
                          problems
                              .slice(0, PAGE_ITEMS)
                              .map((one) =>
                                  el(
                                      'li',
                                      null,
                                      outside(one.line === null ? one.file : `${one.file}:${one.line}`),
                                      ': ',
                                      outside(one.text),
                                  ),
                              ),
                      ),
            ),
            panel(
                'Silences',
                null,
                silences.length === 0
                    ? el('p', { class: 'faint' }, 'None.')
                    : el(
                          'ul',
                          { class: 'plain' },
                          silences
                              .slice(0, PAGE_ITEMS)
                              .map((one) =>
                                  el(
                                      'li',
                                      null,
                                      one.id === null ? 'all instances' : outside(one.id),
                                      ' until ',
                                      timeElement(parse(one.until)),
                                      ': ',
                                      outside(one.reason),
                                      ' (',
                                      outside(one.created_by),
                                      ')',
                                  ),
                              ),
                      ),
            ),
        );
    }
}
