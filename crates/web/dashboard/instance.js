// SPDX-License-Identifier: Apache-2.0
// One instance: its role, why it has it, its timeline and stopwatch, addresses, deliveries, processes, adverts, findings.

import { el, outside, panel, renew, setText } from './dom.js';
import { ageElement, parse, timeElement } from './clock.js';
import { fetchDocument } from './link.js';
import { icon, meaning } from './roles.js';
import { address, refine } from './route.js';
import { prepared } from './transition-log.js';
import { store } from './store.js';
import { Timeline } from './timeline.js';
import { stopwatch, transitionTable } from './stopwatch.js';
import {
    addressPanel,
    advertPanel,
    deliveryPanel,
    evidenceList,
    factPanel,
    findingPanel,
    processPanel,
} from './instance-panels.js';
import { words } from './format.js';

const HISTORY_ITEMS = 1000;
const SHOWN_TRANSITIONS = 50;
/** Adverts and processes change without an event. */
const REFRESH_INTERVAL_MS = 10_000;
const EVENT_DELAY_MS = 250;

/** The view. The route has the id; its parameters `from` and `to` are the limits of the timeline, `seq` the stopwatch's transition. */
export class InstanceView {
    #id;
    #detail = null;
    #transitions = [];
    #gaps = [];
    #problem = null;
    /** Why there is no history. */
    #historyProblem = null;
    #knownSeq = -1;
    #limits = { from: null, to: null };
    #selected = null;
    #timer = null;
    #interval = setInterval(() => {
        if (!document.hidden) this.#read();
    }, REFRESH_INTERVAL_MS);
    #isReading = false;

    constructor(route) {
        this.#id = route.id;
        this.title = route.id;
        this.head = el('div', { class: 'instance-head' });
        this.timeline = new Timeline((from, to) => this.#zoomed(from, to));
        this.historyNotice = el('p', { class: 'notice', hidden: true });
        this.timelinePanel = panel('Timeline', { hidden: true }, this.historyNotice, this.timeline.element);
        this.watchPanel = panel('Stopwatch', { hidden: true }, (this.watch = el('div')));
        this.body = el('div', { class: 'columns' });
        this.transitionPanel = panel('Transitions', { hidden: true }, (this.transitionBody = el('div')));
        this.element = el(
            'div',
            { class: 'view' },
            this.head,
            this.timelinePanel,
            this.watchPanel,
            this.body,
            this.transitionPanel,
        );
        renew(this.head, el('h1', null, outside(this.#id)), el('p', { class: 'faint' }, 'Reading…'));
        this.setRoute(route);
        this.#read();
    }

    setRoute({ parameters }) {
        const number = (name) => (/^\d{1,15}$/.test(parameters.get(name) ?? '') ? Number(parameters.get(name)) : null);
        this.#limits = { from: number('from'), to: number('to') };
        this.#selected = number('seq');
        if (this.#detail !== null) this.#show();
    }

    update(parts) {
        if (parts.has('link') && store.link.state === 'live') this.#readSoon();
        if (!parts.has('instances') && !parts.has('history') && !parts.has('findings')) return;
        const item = store.instances.get(this.#id);
        const mark = `${item?.seq} ${item?.role} ${item?.cause} ${item?.findings} ${JSON.stringify(item?.failures)} ${JSON.stringify(item?.latencies)}`;
        if (mark === this.#knownSeq) return;
        this.#knownSeq = mark;
        this.#readSoon();
    }

    close() {
        clearTimeout(this.#timer);
        clearInterval(this.#interval);
        this.timeline.close();
    }

    #readSoon() {
        this.#timer ??= setTimeout(() => {
            this.#timer = null;
            this.#read();
        }, EVENT_DELAY_MS);
    }

    async #read() {
        if (this.#isReading) {
            this.#readSoon();
            return;
        }
        this.#isReading = true;
        const id = encodeURIComponent(this.#id);
        const [detail, history] = await Promise.allSettled([
            fetchDocument(`/v1/instances/${id}`),
            fetchDocument(`/v1/history?id=${id}&limit=${HISTORY_ITEMS}`),
        ]);
        this.#isReading = false;
        this.#takeDetail(detail);
        this.#takeHistory(history);
        this.#show();
    }

    /** The path also accepts the beginning of an id; the view shows only the instance with exactly this id. */
    #takeDetail({ value, reason }) {
        const isOther = value ? value.instance.id !== this.#id : reason.problem?.code === 'ambiguous-id';
        if (isOther) {
            this.#detail = null;
            this.#problem = { status: 404, detail: `there is no instance "${this.#id}" on this node` };
        } else if (value) {
            this.#detail = value;
            this.#problem = null;
        } else {
            this.#problem = reason.problem;
            // The last known document stays on the screen while the node does not answer.
            if (this.#problem?.status === 404) this.#detail = null;
        }
    }

    #takeHistory({ value, reason }) {
        if (value) {
            // The parameter `id` also selects ids that begin with it.
            const items = value.items.filter((item) => item.type === 'transition' && item.id === this.#id);
            this.#transitions = items.map(prepared);
            this.#gaps = value.items.filter((item) => item.type === 'gap');
            this.#historyProblem = null;
        } else if (reason.problem?.status !== 0 || this.#transitions.length === 0) {
            // The last known history stays on the screen while the node does not answer.
            this.#transitions = (this.#detail?.timeline ?? []).map(prepared);
            this.#gaps = [];
            this.#historyProblem = this.#detail?.history_error ?? reason.problem?.detail ?? 'the node does not answer';
        }
    }

    #zoomed(from, to) {
        this.#limits = { from, to };
        refine({
            from: from === null ? '' : Math.round(from),
            to: to === null ? '' : Math.round(to),
            seq: this.#selected,
        });
    }

    #show() {
        renew(this.head, this.#header());
        const hasHistory = this.#transitions.length > 0;
        // An instance that does not exist has a notice already.
        const problem = this.#detail === null ? null : this.#historyProblem;
        this.historyNotice.hidden = problem === null;
        if (problem !== null) setText(this.historyNotice, `The history cannot be read: ${problem}`);
        this.timeline.element.hidden = !hasHistory;
        this.timelinePanel.hidden = !hasHistory && problem === null;
        this.watchPanel.hidden = !hasHistory;
        this.transitionPanel.hidden = !hasHistory;
        if (hasHistory) this.#showHistory();
        renew(this.body, this.#detail === null ? [] : this.#panels());
    }

    #showHistory() {
        this.timeline.show(this.#transitions, this.#gaps, this.#limits.from, this.#limits.to);
        const newest = this.#transitions.at(-1);
        const item = this.#detail?.instance;
        const chosen = this.#transitions.find((item) => item.seq === this.#selected) ?? newest;
        renew(this.watch, stopwatch(chosen, item?.stages ?? [], item?.failures ?? [], chosen === newest));
        const select = (seq) => {
            this.#selected = seq;
            refine({ from: this.#limits.from, to: this.#limits.to, seq });
            this.#show();
        };
        const last = this.#transitions.slice(-SHOWN_TRANSITIONS).reverse();
        renew(
            this.transitionBody,
            transitionTable(last, chosen.seq, select),
            this.#transitions.length > SHOWN_TRANSITIONS
                ? el(
                      'p',
                      { class: 'more' },
                      el('a', { href: address('history', null, { id: this.#id }) }, 'More in History'),
                  )
                : null,
        );
    }

    #header() {
        const back = el('p', { class: 'crumb' }, el('a', { href: address('overview') }, 'Overview'), ' / instance');
        const item = this.#detail?.instance;
        if (!item) {
            const problem = this.#problem;
            return [
                back,
                el('h1', null, outside(this.#id)),
                el(
                    'p',
                    { class: 'notice', role: 'alert' },
                    outside(problem?.detail ?? 'the node does not answer'),
                    this.#transitions.length > 0
                        ? '. The history below is from the time when it was configured.'
                        : null,
                ),
            ];
        }
        const since = parse(item.since);
        return [
            back,
            el('h1', null, outside(item.id)),
            el(
                'p',
                { class: 'instance-role', id: 'instance-role' },
                el('span', { class: `role big role-${item.role}` }, icon(item.role), item.role),
                el('span', { class: 'faint' }, meaning(item.role)),
            ),
            el(
                'p',
                { class: 'instance-why' },
                since === null
                    ? 'It is not known since when.'
                    : ['Since ', timeElement(since, true), ' (', ageElement(since), ')'],
                ': ',
                el(
                    'bdi',
                    { class: 'outside strong', id: 'instance-cause' },
                    item.cause_text ?? `${words(item.trigger)}; the cause is not known yet`,
                ),
                item.reason ? [' · ', outside(item.reason)] : null,
            ),
            evidenceList(item.evidence),
            item.silenced_until
                ? el(
                      'p',
                      { class: 'notice' },
                      'Hooks and webhooks are silenced until ',
                      timeElement(parse(item.silenced_until)),
                  )
                : null,
        ];
    }

    #panels() {
        return [
            findingPanel(this.#detail),
            addressPanel(this.#detail.instance),
            deliveryPanel(this.#detail.instance),
            advertPanel(this.#detail.adverts),
            processPanel(this.#detail.keepalived),
            factPanel(this.#detail.instance),
        ];
    }
}
