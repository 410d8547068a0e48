// SPDX-License-Identifier: Apache-2.0
// What needs attention, the most serious first: findings, failed deliveries, problems of the node and of files.

import { el, outside } from './dom.js';
import { ageElement } from './clock.js';
import { address, instanceAddress } from './route.js';
import { count, counted, words } from './format.js';
import { findingKey, store } from './store.js';

export const SEVERITIES = ['critical', 'warning', 'info'];
export const SEVERITY_MEANINGS = {
    critical: 'traffic is lost, or will be lost at the next failover',
    warning: 'a component has recorded or published a wrong state',
    info: 'unusual, but without effect on traffic',
};
const MAX_LINES = 6;

/** Findings about the node that are not in the list of findings. */
const healthFindings = () =>
    (store.status?.health ?? []).filter((item) => !store.findings.has(findingKey({ id: null, name: item.name })));

/** The number of all findings. */
export const findingCount = () => store.findings.size + healthFindings().length;

let known = { mark: null, findings: [] };

/** All findings, also those about the node, the most serious and the newest first. */
export function allFindings() {
    const mark = `${store.changes.findings} ${store.changes.status}`;
    if (known.mark !== mark) {
        const order = (item) => SEVERITIES.indexOf(item.severity);
        const findings = [...healthFindings(), ...store.findings.values()];
        findings.sort((a, b) => order(a) - order(b) || (b.sinceMs ?? 0) - (a.sinceMs ?? 0));
        known = { mark, findings };
    }
    return known.findings;
}

/** The number of findings of each severity. */
export function severityCounts(findings) {
    const counts = { critical: 0, warning: 0, info: 0 };
    for (const { severity } of findings) counts[severity] = (counts[severity] ?? 0) + 1;
    return counts;
}

/** The targets whose deliveries fail. */
export const failingTargets = () => store.targets.filter((target) => target.failing.length > 0);

/** Whether a finding has the same content as the line of a failing target. */
const hasFinding = (target) =>
    target.failing.every(({ id }) => store.findings.has(findingKey({ id, name: `${target.kind}-failed` })));

/** Changes with the content of the panel. */
export const attentionMark = () =>
    `${store.isLoaded} ${store.changes.findings} ${JSON.stringify([store.status?.health, failingTargets(), store.status?.problem_count])}`;

/** The content of the panel. */
export function attention() {
    if (!store.isLoaded)
        return [
            el('h2', { id: 'h-attention', class: 'hidden-text' }, 'Attention'),
            el('p', { class: 'faint' }, 'Reading the state of the node…'),
        ];
    const findings = allFindings();
    const failing = failingTargets().filter((target) => !hasFinding(target));
    const groups = findingGroups(findings);
    // A finding about the node stands for all problems in files; the view of the findings lists them.
    const isFound = findings.some((item) => item.name === 'configuration-problem');
    const problems = isFound ? [] : store.status.problems;
    const total = groups.length + failing.length + (isFound ? 0 : store.status.problem_count);
    if (total === 0) {
        return [
            el('h2', { id: 'h-attention', class: 'hidden-text' }, 'Attention'),
            el(
                'p',
                { class: 'all-well' },
                el('span', { class: 'tick', 'aria-hidden': 'true' }, '✓'),
                'Nothing needs attention: no finding, no failed delivery.',
            ),
        ];
    }
    return [
        el(
            'div',
            { class: 'attention-head' },
            el('h2', { id: 'h-attention' }, 'Needs attention'),
            severityLine(findings, failing.length),
        ),
        el('ul', { class: 'attention-list' }, lines(groups, failing, problems)),
        total > MAX_LINES
            ? el(
                  'p',
                  { class: 'more' },
                  el('a', { href: address('findings') }, `${count(total - MAX_LINES)} more in Findings`),
              )
            : null,
    ];
}

/** The first lines, as elements. */
function lines(groups, failing, problems) {
    const makers = [
        ...groups.map((group) => () => findingLine(group.first, group.size)),
        ...failing.map((target) => () => targetLine(target)),
        ...problems.map((problem) => () => problemLine(problem)),
    ];
    return makers.slice(0, MAX_LINES).map((make) => make());
}

function severityLine(findings, failing) {
    const counts = severityCounts(findings);
    const parts = SEVERITIES.filter((severity) => counts[severity] > 0).map((severity) =>
        el(
            'a',
            {
                class: `severity severity-${severity}`,
                href: address('findings', null, { severity }),
                title: SEVERITY_MEANINGS[severity],
            },
            `${count(counts[severity])} ${severity}`,
        ),
    );
    if (failing > 0)
        parts.push(
            el(
                'a',
                { class: 'severity severity-warning', href: address('findings') },
                counted(failing, 'failing target'),
            ),
        );
    return el('p', { class: 'severities' }, parts);
}

/** Findings with the same name are one line: in a failure of many instances, the line has their number. */
function findingGroups(findings) {
    const groups = new Map();
    for (const item of findings) {
        const key = `${item.severity} ${item.name}`;
        const group = groups.get(key) ?? { first: item, size: 0 };
        group.size += 1;
        groups.set(key, group);
    }
    return [...groups.values()];
}

function findingLine(item, number) {
    const since = item.sinceMs;
    const where =
        number > 1
            ? el('a', { href: address('findings', null, { name: item.name }) }, counted(number, 'instance'))
            : item.id === null
              ? el('a', { href: address('findings', null, { name: item.name }) }, 'the node')
              : el('a', { class: 'outside', href: instanceAddress(item.id) }, item.id);
    return el(
        'li',
        { class: `line line-${item.severity}` },
        el('span', { class: `severity severity-${item.severity}` }, item.severity),
        el(
            'span',
            { class: 'line-main' },
            el('strong', null, words(item.name)),
            ' ',
            where,
            number > 1 ? null : [': ', outside(item.text)],
        ),
        since === null ? null : el('span', { class: 'line-age' }, ageElement(since, 'short')),
    );
}

function targetLine(target) {
    const [first] = target.failing;
    return el(
        'li',
        { class: 'line line-warning' },
        el('span', { class: 'severity severity-warning' }, 'warning'),
        el(
            'span',
            { class: 'line-main' },
            el('strong', null, `${target.kind} `),
            outside(target.name),
            ' fails for ',
            target.failing.length === 1
                ? el('a', { class: 'outside', href: instanceAddress(first.id) }, first.id)
                : counted(target.failing.length, 'instance'),
            ': ',
            outside(first.error),
        ),
    );
}

function problemLine(problem) {
    const place = problem.line === null ? problem.file : `${problem.file}:${problem.line}`;
    return el(
        'li',
        { class: 'line line-info' },
        el('span', { class: 'severity severity-info' }, 'file'),
        el('span', { class: 'line-main' }, outside(place), ': ', outside(problem.text)),
    );
}
