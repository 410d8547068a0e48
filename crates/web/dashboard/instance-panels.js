// SPDX-License-Identifier: Apache-2.0
// The panels of an instance that do not change with time: facts of its document in words.

import { el, outside, panel, table } from './dom.js';
import { ageElement, parse, timeElement } from './clock.js';
import { count, micros, span, words } from './format.js';

const facts = (rows) =>
    el(
        'dl',
        { class: 'facts' },
        rows
            .filter(([, value]) => value !== null && value !== undefined)
            .map(([name, value]) => el('div', null, el('dt', null, name), el('dd', null, value))),
    );

const EVIDENCE = {
    peer: 'other node',
    peer_priority: 'its priority',
    peer_priority_before: 'its priority before',
    own_priority: 'own priority',
    own_priority_before: 'own priority before',
    silent_ms: 'silent for',
    pid: 'process',
    program: 'program',
    signal: 'signal',
    exit_code: 'exit code',
    before_ms: 'before the transition',
    unknown: 'not known because',
};

/** The facts behind a cause. */
export function evidenceList(evidence) {
    const entries = Object.entries(evidence ?? {}).filter(([name]) => name in EVIDENCE);
    if (entries.length === 0 && !evidence?.inferred) return null;
    const value = (name, raw) => (name.endsWith('_ms') ? `${count(raw)} ms` : name === 'unknown' ? words(raw) : raw);
    return el(
        'ul',
        { class: 'evidence', 'aria-label': 'Evidence' },
        entries.map(([name, raw]) =>
            el('li', null, el('span', { class: 'faint' }, `${EVIDENCE[name]} `), outside(String(value(name, raw)))),
        ),
        evidence.inferred ? el('li', { class: 'faint' }, 'inferred: the facts exclude other causes') : null,
    );
}

/** One finding with its remedy. */
export function findingItem(item, where) {
    const since = parse(item.since);
    return el(
        'li',
        { class: `finding finding-${item.severity}`, 'data-name': item.name },
        el(
            'p',
            { class: 'finding-head' },
            el('span', { class: `severity severity-${item.severity}` }, item.severity),
            el('strong', null, words(item.name)),
            where,
            el(
                'span',
                { class: 'finding-age faint' },
                since === null ? null : ['since ', timeElement(since), ' (', ageElement(since, 'short'), ')'],
            ),
        ),
        el('p', null, outside(item.text)),
        item.hint
            ? el('p', { class: 'hint' }, el('span', { class: 'hint-label' }, 'What to do'), outside(item.hint))
            : null,
        item.silenced_until
            ? el('p', { class: 'faint' }, 'silenced until ', timeElement(parse(item.silenced_until)))
            : null,
    );
}

export function findingPanel({ findings, audited_at: audited }) {
    const body =
        findings.length === 0
            ? el('p', { class: 'faint' }, 'No finding.')
            : el(
                  'ul',
                  { class: 'findings' },
                  findings.map((item) => findingItem(item)),
              );
    return panel(
        'Findings',
        { class: 'panel wide' },
        body,
        el(
            'p',
            { class: 'faint' },
            audited ? ['Last audit ', ageElement(parse(audited)), ' ago.'] : 'Changed since the last audit.',
        ),
    );
}

export function addressPanel(item) {
    const held = (address) => (address.held === null ? 'not known' : address.held ? 'held' : 'not held');
    const rows = item.addresses.map((address) => [
        outside(address.cidr),
        outside(address.link),
        el('span', { class: address.held ? 'good' : '' }, held(address)),
        [address.floating ? 'floating ' : '', address.state ? outside(address.state) : null],
    ]);
    return panel(
        'Addresses',
        null,
        rows.length === 0
            ? el('p', { class: 'faint' }, 'None.')
            : table('Addresses', ['Address', 'Link', 'Here', 'Details'], rows),
    );
}

export function deliveryPanel(item) {
    const failures = item.failures.map((one) =>
        el(
            'li',
            null,
            el('span', { class: 'severity severity-warning' }, 'fails'),
            ' ',
            one.stage,
            ' ',
            outside(one.target),
            ': ',
            outside(one.error),
        ),
    );
    const times = Object.entries(item.latencies)
        .map(([stage, value]) => `${stage} ${micros(value)}`)
        .join(', ');
    const agent =
        item.agent === null
            ? null
            : item.agent.failing !== null
              ? outside(item.agent.failing)
              : (item.agent.acknowledged ?? 'nothing yet');
    return panel(
        'Deliveries',
        null,
        failures.length > 0
            ? el('ul', { class: 'plain' }, failures)
            : el(
                  'p',
                  { class: 'faint' },
                  item.stages.length === 0 ? 'No target is configured for this instance.' : 'No delivery fails.',
              ),
        facts([
            ['configured stages', item.stages.length === 0 ? null : item.stages.join(', ')],
            ['last transition', times === '' ? null : times],
            [item.agent?.failing ? 'agent fails' : 'agent has acknowledged', agent],
            [
                'monitor reported',
                item.report === null
                    ? null
                    : [outside(item.report.reported), ', ', ageElement(parse(item.report.at)), ' ago'],
            ],
        ]),
    );
}

export function processPanel(process) {
    if (!process)
        return panel(
            'keepalived',
            null,
            el('p', { class: 'faint' }, 'Its processes are not read, or it is in no file of keepalived.'),
        );
    return panel(
        'keepalived',
        null,
        facts([
            ['state', el('span', { class: process.state === 'runs' ? 'good' : 'bad' }, words(process.state))],
            ['parent process', process.pid],
            ['VRRP process', process.vrrp_pid],
            ['started', process.started === null ? null : [ageElement(parse(process.started)), ' ago']],
        ]),
    );
}

export function advertPanel(adverts) {
    if (!adverts) return panel('Adverts', null, el('p', { class: 'faint' }, 'Adverts are not captured.'));
    const presence =
        adverts.presence === 'silent'
            ? `no node has advertised for ${span(adverts.silent_ms ?? 0)}`
            : adverts.presence === 'advertised'
              ? 'a node advertises'
              : 'it cannot be said whether a node advertises';
    const rows = adverts.sources.map((source) => [
        [
            outside(source.source),
            source.own ? ' (this node)' : null,
            source.unicast ? ' unicast' : null,
            source.signature === null
                ? null
                : `, signed with key ${source.signature.key_id}, its clock ${count(-source.signature.clock_difference_ms)} ms`,
        ],
        source.previous_priority === null ? source.priority : `${source.priority} (before ${source.previous_priority})`,
        source.advertising ? el('span', { class: 'good' }, 'advertises') : 'stopped',
        `${count(source.age_ms)} ms ago`,
        `${count(source.adverts)}, ${count(source.lost)} lost`,
        source.differences.length === 0 ? '–' : outside(source.differences.join('; ')),
    ]);
    const bad = Object.entries(adverts.bad)
        .map(([name, number]) => `${number} ${words(name)}`)
        .join(', ');
    return panel(
        'Adverts',
        { class: 'panel wide' },
        el(
            'p',
            null,
            `On ${adverts.capture === 'running' ? '' : `(${words(adverts.capture)}) `}`,
            outside(adverts.link),
            `: ${presence}.`,
        ),
        adverts.error ? el('p', { class: 'bad' }, outside(adverts.error)) : null,
        rows.length === 0
            ? null
            : table('Sources of adverts', ['Source', 'Priority', 'State', 'Last', 'Adverts', 'Differences'], rows),
        facts([
            ['captured since', timeElement(parse(adverts.since))],
            ['not decoded', adverts.undecoded === 0 ? null : count(adverts.undecoded)],
            ['not believed', bad === '' ? null : bad],
            ['lost by the capture', adverts.dropped === 0 ? null : count(adverts.dropped)],
            ['own adverts captured', adverts.sent ? null : 'no'],
            ['other virtual routers on the link', adverts.other_vrids === 0 ? null : adverts.other_vrids],
        ]),
    );
}

export function factPanel(item) {
    return panel(
        'Configuration',
        null,
        facts([
            ['name', outside(item.name)],
            ['origin', outside(item.origin)],
            ['namespace', item.netns === null ? 'the node’s own' : outside(item.netns)],
            ['interface', outside(item.interface)],
            ['virtual router id', item.vrid],
            ['priority', item.priority],
            ['file', outside(`${item.file}:${item.line}`)],
            ['last event', `number ${item.seq}`],
        ]),
    );
}
