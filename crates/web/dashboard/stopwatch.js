// SPDX-License-Identifier: Apache-2.0
// The stopwatch of a failover: how long after the kernel's event each stage had done its work.

import { el, table } from './dom.js';
import { micros } from './format.js';
import { timeElement } from './clock.js';
import { icon } from './roles.js';

/** The stages in the order in which a node serves them. */
export const STAGES = [
    ['file', 'state file'],
    ['announce', 'announcement'],
    ['ipv6', 'IPv6 setting'],
    ['hook', 'hook'],
    ['webhook', 'webhook'],
    ['agent', 'agent'],
];
const ALWAYS = ['file', 'announce', 'hook', 'webhook', 'agent'];
// The scale is logarithmic, from 10 µs to 10 s.
const [MIN_LOG, MAX_LOG] = [1, 7];

const position = (value) => Math.min(1, Math.max(0, (Math.log10(Math.max(1, value)) - MIN_LOG) / (MAX_LOG - MIN_LOG)));

/** Why a stage has no time. */
function missing(stage, transition, configured, failures, isNewest) {
    if (!configured.includes(stage)) return 'no target';
    if (stage === 'announce' && transition.to !== 'primary' && transition.to !== 'partial') return 'not for this role';
    if (!isNewest) return 'no time recorded';
    return failures.some((one) => one.stage === stage) ? 'fails' : 'not done yet';
}

/** The stages of one transition as a list with bars. `configured` are the stages that have targets, `failures` the
 * deliveries that failed at their last attempt. */
export function stopwatch(transition, configured, failures, isNewest) {
    const shown = STAGES.filter(([stage]) => ALWAYS.includes(stage) || stage in transition.latencies);
    const rows = shown.map(([stage, title]) => {
        const value = transition.latencies[stage];
        const state = value !== undefined ? micros(value) : missing(stage, transition, configured, failures, isNewest);
        const bar = el('span', { class: 'sw-bar' });
        if (value !== undefined) bar.style.width = `${Math.max(1, position(value) * 100)}%`;
        return el(
            'li',
            { class: value === undefined ? 'sw-row sw-none' : 'sw-row', 'data-stage': stage },
            el('span', { class: 'sw-name' }, title),
            el('span', { class: 'sw-track', 'aria-hidden': 'true' }, value === undefined ? null : bar),
            el('span', { class: 'sw-value' }, state),
        );
    });
    return el(
        'div',
        { class: 'stopwatch' },
        el(
            'p',
            { class: 'sw-title' },
            icon(transition.to),
            `${transition.from ?? 'not known'} → ${transition.to} at `,
            timeElement(transition.atMs, true),
        ),
        el(
            'ol',
            { class: 'sw-list' },
            el(
                'li',
                { class: 'sw-row' },
                el('span', { class: 'sw-name' }, 'kernel event'),
                el('span', { class: 'sw-track', 'aria-hidden': 'true' }),
                el('span', { class: 'sw-value' }, '0'),
            ),
            rows,
        ),
        el(
            'p',
            { class: 'faint sw-scale' },
            'Time from the kernel’s event to the end of each stage; the bars have a logarithmic scale from 10 µs to 10 s.',
        ),
    );
}

/** The transitions of an instance with their latencies. `onSelect(seq)` chooses the one for the stopwatch. */
export function transitionTable(transitions, selected, onSelect) {
    const present = STAGES.filter(([stage]) => transitions.some((item) => stage in item.latencies));
    const rows = transitions.map((item) => [
        el(
            'td',
            { 'data-head': 'When' },
            el(
                'button',
                {
                    type: 'button',
                    class: 'link',
                    'data-key': item.seq,
                    'aria-pressed': String(item.seq === selected),
                    title: 'Show in the stopwatch',
                    onclick: () => onSelect(item.seq),
                },
                timeElement(item.atMs, true),
            ),
        ),
        el('span', { class: `role role-${item.to}` }, icon(item.to), `${item.from ?? '–'} → ${item.to}`),
        el('bdi', { class: 'outside' }, item.cause_text ?? item.trigger, item.reason ? ` (${item.reason})` : null),
        ...present.map(([stage]) => (stage in item.latencies ? micros(item.latencies[stage]) : '–')),
    ]);
    return table(
        'Transitions of the instance, newest first',
        ['When', 'Change', 'Why', ...present.map(([, title]) => title)],
        rows,
    );
}
