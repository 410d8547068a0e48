// SPDX-License-Identifier: Apache-2.0
// The cluster: its nodes, findings and groups, as the node sees them.

import { el, outside, panel, renew, setText, table } from './dom.js';
import { ageElement, parse, timeElement } from './clock.js';
import { address, open, refine } from './route.js';
import { count, counted, words } from './format.js';
import { findingItem } from './instance-panels.js';
import { Paced } from './frames.js';
import { wantCluster } from './link.js';
import { STATES, STATE_MEANINGS, cluster, stateCounts } from './cluster-store.js';
import { GroupTable } from './cluster-table.js';

const SHOW_INTERVAL_MS = 300;
const MAX_FINDINGS = 20;

/** The view. Parameters: `state`, `q`. */
export class ClusterView {
    title = 'Cluster';
    #filter;
    #paced = new Paced(SHOW_INTERVAL_MS, () => {
        if (this.element.isConnected) this.#show();
    });

    constructor(route) {
        this.search = el('input', {
            type: 'search',
            id: 'group-search',
            placeholder: 'group, node, address, finding',
            autocomplete: 'off',
            spellcheck: 'false',
            oninput: () => this.#refine(this.search.value),
        });
        this.notice = el('div', { class: 'banner banner-stale', id: 'cluster-notice', role: 'alert', hidden: true });
        this.source = el('p', { class: 'faint', id: 'cluster-source' });
        this.nodes = el('div');
        this.findings = el('div');
        this.limits = el('div');
        this.stateTiles = STATES.map((state) => this.#tile(state));
        this.total = el('p', { class: 'total', role: 'status' });
        this.table = new GroupTable();
        this.empty = el('p', { class: 'empty', hidden: true });
        this.content = el(
            'div',
            null,
            this.nodes,
            this.findings,
            el(
                'section',
                { 'aria-label': 'Groups' },
                el(
                    'div',
                    { class: 'tiles state-tiles', role: 'group', 'aria-label': 'Filter by state' },
                    this.stateTiles.map((tile) => tile.element),
                ),
                el(
                    'search',
                    { class: 'toolbar' },
                    el('label', { class: 'field grow' }, el('span', { class: 'hidden-text' }, 'Search'), this.search),
                    this.total,
                ),
                this.table.element,
                this.empty,
            ),
            this.limits,
        );
        this.element = el(
            'div',
            { class: 'view' },
            el('h1', null, 'Cluster'),
            this.notice,
            this.source,
            this.content,
        );
        this.setRoute(route);
        wantCluster(true);
    }

    get searchField() {
        return this.search;
    }

    setRoute({ parameters }) {
        this.#filter = {
            state: parameters.getAll('state').filter((one) => STATES.includes(one)),
            q: parameters.get('q') ?? '',
        };
        if (this.search.value !== this.#filter.q) this.search.value = this.#filter.q;
        this.#show();
    }

    update(parts) {
        if (parts.has('cluster')) this.#paced.request();
    }

    close() {
        wantCluster(false);
        this.#paced.cancel();
        this.table.close();
    }

    #refine(q) {
        this.#filter.q = q;
        refine(this.#filter);
        this.#showGroups();
    }

    #tile(state) {
        const number = el('span', { class: 'tile-number' }, '0');
        const element = el(
            'button',
            {
                type: 'button',
                class: `tile tile-${state}`,
                'data-state': state,
                title: STATE_MEANINGS[state],
                'aria-pressed': 'false',
                onclick: () => this.#toggle(state),
            },
            number,
            el('span', { class: 'tile-label' }, words(state)),
        );
        return { state, element, number };
    }

    #toggle(state) {
        const has = this.#filter.state.includes(state);
        const states = has ? this.#filter.state.filter((one) => one !== state) : [...this.#filter.state, state];
        open(address('cluster', null, { ...this.#filter, state: states }));
    }

    #show() {
        const basis = cluster.basis;
        const isOff = basis?.connection === 'off';
        this.content.hidden = isOff;
        this.#showNotice(basis);
        setText(this.source, sourceText(basis));
        if (isOff) return;
        this.#showNodes();
        this.#showFindings();
        this.#showGroups();
        const unknown = basis?.unknown ?? [];
        renew(
            this.limits,
            unknown.length === 0
                ? null
                : panel(
                      'Not known',
                      null,
                      el(
                          'ul',
                          { class: 'plain' },
                          unknown.slice(0, MAX_FINDINGS).map((text) => el('li', null, outside(text))),
                      ),
                  ),
        );
    }

    /** The node has lost etcd, has not read it yet, cannot write to it, or has no cluster; or the cluster cannot be read. */
    #showNotice(basis) {
        const error = basis?.error ? [': ', outside(basis.error)] : null;
        const texts = {
            stale: () => [
                el('strong', null, 'stale since ', timeElement(parse(basis.stale_since))),
                ' (',
                ageElement(parse(basis.stale_since), 'short'),
                '): the roles are those of that time',
                error,
            ],
            connected: () =>
                error ? ['etcd rejects the records of this node, and roles of other nodes may be old', error] : null,
            connecting: () => ['The node has not read etcd yet', error],
            off: () => [
                'No cluster is configured on this node: set ',
                el('code', null, 'endpoints'),
                ' in [cluster] of its configuration.',
            ],
        };
        const text = cluster.problem
            ? ['The cluster cannot be read: ', outside(cluster.problem.detail)]
            : (texts[basis?.connection]?.() ?? null);
        this.notice.hidden = text === null;
        this.notice.classList.toggle('banner-info', basis?.connection === 'off');
        this.notice.classList.toggle('banner-stale', basis?.connection !== 'off');
        renew(this.notice, el('span', null, text));
    }

    #showNodes() {
        const rows = cluster.nodes.map((node) => [
            [outside(node.node), node.is_reporter ? el('span', { class: 'faint' }, ' reporter') : null],
            el('span', { class: `state state-${node.state}` }, node.state),
            count(node.primaries),
            count(node.backups),
            count(node.instances),
            outside(node.version),
            // The heartbeats of a lost node are no longer in etcd.
            node.state === 'lost' ? '–' : [ageElement(parse(node.at), 'short'), ' ago'],
        ]);
        const heads = ['Node', 'State', 'Primary', 'Backup', 'Instances', 'Version', 'Last seen'];
        renew(
            this.nodes,
            panel(
                'Nodes',
                { id: 'cluster-nodes' },
                rows.length === 0
                    ? el('p', { class: 'faint' }, cluster.isRead ? 'None.' : 'Reading…')
                    : table('Nodes of the cluster', heads, rows),
            ),
        );
    }

    #showFindings() {
        const items = cluster.findings.slice(0, MAX_FINDINGS).map((item) => {
            const where = outside(item.group ?? item.nodes.join(', '));
            return findingItem({ ...item, since: item.opened }, where);
        });
        const more = cluster.findings.length - items.length;
        renew(
            this.findings,
            panel(
                'Findings of the cluster',
                { id: 'cluster-findings' },
                items.length === 0
                    ? el('p', { class: 'faint' }, cluster.isRead ? 'None.' : 'Reading…')
                    : el('ul', { class: 'findings' }, items),
                more > 0 ? el('p', { class: 'faint' }, `and ${count(more)} more`) : null,
            ),
        );
    }

    #showGroups() {
        const counts = stateCounts();
        for (const { state, element, number } of this.stateTiles) {
            setText(number, count(counts[state]));
            element.setAttribute('aria-pressed', String(this.#filter.state.includes(state)));
            element.toggleAttribute('data-zero', counts[state] === 0);
        }
        const { state, q } = this.#filter;
        const wanted = q.toLowerCase().split(/\s+/);
        const all = cluster.groups;
        const groups = all.filter(
            (group) =>
                (state.length === 0 || state.includes(group.state)) &&
                wanted.every((word) => group.searchText.includes(word)),
        );
        this.table.show(groups);
        setText(
            this.total,
            groups.length === all.length
                ? counted(all.length, 'group')
                : `${count(groups.length)} of ${counted(all.length, 'group')}`,
        );
        this.table.element.hidden = groups.length === 0;
        this.empty.hidden = groups.length > 0;
        setText(
            this.empty,
            !cluster.isRead
                ? 'Reading the groups…'
                : all.length === 0
                  ? 'There are no groups in this view.'
                  : 'No group matches the filter.',
        );
    }
}

function sourceText(basis) {
    if (basis === null || basis.connection === 'off') return '';
    const scope = basis.scope === 'full' ? 'all groups' : 'only the groups of the instances of this node';
    return `View of ${basis.node ?? 'a node'}: domain ${basis.domain ?? 'none'}, revision ${count(basis.revision)}, ${scope}.`;
}
