// What needs attention, the most serious first: findings, failed deliveries, problems of the node and of files.

import { el, outside } from './dom.js';
import { ageElement, parse } from './clock.js';
import { address, instanceAddress } from './route.js';
import { count, counted, words } from './format.js';
import { store } from './store.js';

export const SEVERITIES = ['broken', 'wrong', 'odd'];
export const SEVERITY_MEANINGS = {
  broken: 'traffic is lost, or will be lost at the next failover',
  wrong: 'a component has recorded or published a wrong state',
  odd: 'unusual, but without effect on traffic',
};
const MAX_LINES = 6;

/** All findings, also those about the node, the most serious and the newest first. */
export function allFindings() {
  const health = (store.status?.health ?? []).filter((item) => !store.findings.has(` ${item.name}`));
  const order = (item) => SEVERITIES.indexOf(item.severity);
  return [...health, ...store.findings.values()].sort((a, b) => order(a) - order(b) || (parse(b.since) ?? 0) - (parse(a.since) ?? 0));
}

/** The number of findings of each severity. */
export function severityCounts(findings) {
  const counts = { broken: 0, wrong: 0, odd: 0 };
  for (const { severity } of findings) counts[severity] = (counts[severity] ?? 0) + 1;
  return counts;
}

/** The targets whose deliveries fail. */
export const failingTargets = () => store.targets.filter((target) => target.failing.length > 0);

/** The content of the panel. */
export function attention() {
  if (store.status === null) return [el('h2', { id: 'h-attention', class: 'hidden-text' }, 'Attention'), el('p', { class: 'faint' }, 'Reading the state of the node…')];
  const findings = allFindings();
  const failing = failingTargets();
  const problems = store.status.problems;
  const lines = [...findingGroups(findings), ...failing.map(targetLine), ...problems.map(problemLine)];
  const total = findings.length + failing.length + problems.length;
  if (total === 0) {
    return [el('h2', { id: 'h-attention', class: 'hidden-text' }, 'Attention'),
      el('p', { class: 'all-well' }, el('span', { class: 'tick', 'aria-hidden': 'true' }, '✓'), 'Nothing needs attention: no finding, no failed delivery.')];
  }
  return [
    el('div', { class: 'attention-head' }, el('h2', { id: 'h-attention' }, 'Needs attention'), severityLine(findings, failing.length)),
    el('ul', { class: 'attention-list' }, lines.slice(0, MAX_LINES)),
    lines.length > MAX_LINES ? el('p', { class: 'more' }, el('a', { href: address('findings') }, `${counted(lines.length - MAX_LINES, 'more line')} in Findings`)) : null,
  ];
}

function severityLine(findings, failing) {
  const counts = severityCounts(findings);
  const parts = SEVERITIES.filter((severity) => counts[severity] > 0).map((severity) => el('a', {
    class: `severity severity-${severity}`, href: address('findings', null, { severity }), title: SEVERITY_MEANINGS[severity],
  }, `${count(counts[severity])} ${severity}`));
  if (failing > 0) parts.push(el('a', { class: 'severity severity-wrong', href: address('findings') }, counted(failing, 'failing target')));
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
  return [...groups.values()].map(({ first, size }) => findingLine(first, size));
}

function findingLine(item, number) {
  const since = parse(item.since);
  const where = number > 1
    ? el('a', { href: address('findings', null, { name: item.name }) }, counted(number, 'instance'))
    : item.id === null ? el('a', { href: address('findings', null, { name: item.name }) }, 'the node') : el('a', { class: 'outside', href: instanceAddress(item.id) }, item.id);
  return el('li', { class: `line line-${item.severity}` }, el('span', { class: `severity severity-${item.severity}` }, item.severity),
    el('span', { class: 'line-main' }, el('strong', null, words(item.name)), ' ', where, number > 1 ? null : [': ', outside(item.text)]),
    since === null ? null : el('span', { class: 'line-age' }, ageElement(since, 'short')));
}

function targetLine(target) {
  const [first] = target.failing;
  return el('li', { class: 'line line-wrong' }, el('span', { class: 'severity severity-wrong' }, 'wrong'),
    el('span', { class: 'line-main' }, el('strong', null, `${target.kind} `), outside(target.name), ' fails for ',
      target.failing.length === 1 ? el('a', { class: 'outside', href: instanceAddress(first.id) }, first.id) : counted(target.failing.length, 'instance'),
      ': ', outside(first.error)));
}

function problemLine(problem) {
  const place = problem.line === null ? problem.file : `${problem.file}:${problem.line}`;
  return el('li', { class: 'line line-odd' }, el('span', { class: 'severity severity-odd' }, 'file'),
    el('span', { class: 'line-main' }, outside(place), ': ', outside(problem.text)));
}
