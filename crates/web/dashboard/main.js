// SPDX-License-Identifier: Apache-2.0
// The page: chooses the view, and shows the state of the connection.

import { el, outside, replace, setText } from './dom.js';
import { tick } from './clock.js';
import { clockTime, count, counted, visible, zoneName } from './format.js';
import { current } from './route.js';
import { hasToken, isToken, retry, start, useToken } from './link.js';
import { onChange, store, takeAnnouncements } from './store.js';
import { findingCount } from './attention.js';
import { Overview } from './overview.js';
import { InstanceView } from './instance.js';
import { HistoryView } from './history.js';
import { FindingsView } from './findings.js';
import { ClusterView } from './cluster.js';
import { cluster } from './cluster-store.js';

const VIEWS = {
    overview: Overview,
    instance: InstanceView,
    history: HistoryView,
    findings: FindingsView,
    cluster: ClusterView,
};
/** The shortest time between two announcements to screen readers. */
const ANNOUNCE_INTERVAL_MS = 5000;

const byId = (id) => document.getElementById(id);
const main = byId('main');
let view = null;
let shown = null;
const positions = new Map();

/** Shows the view of the route. The same view with other parameters stays. */
function showRoute() {
    const route = current();
    const key = `${route.view} ${route.id}`;
    if (view !== null && key === shown) {
        view.setRoute?.(route);
    } else {
        const isFirst = shown === null;
        if (!isFirst) positions.set(shown, scrollY);
        view?.close?.();
        shown = key;
        view = route.view in VIEWS ? new VIEWS[route.view](route) : missing(route);
        replace(main, view.element);
        view.update?.(new Set(['instances', 'findings', 'history', 'status', 'targets', 'cluster']));
        moveFocus(isFirst);
        // Back in the overview, the table is where it was.
        requestAnimationFrame(() => scrollTo(0, positions.get(key) ?? 0));
    }
    if (positions.size > 50) positions.clear();
    document.title = visible(`${view.title} · ${store.node ?? 'vipwatch'}`);
    for (const link of document.querySelectorAll('nav a')) {
        if (link.dataset.view === route.view) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
    }
}

let isSearchWanted = false;

/** After a change of the view, the element that had the focus does not exist any more. */
function moveFocus(isFirst) {
    if (isSearchWanted) view.searchField?.focus();
    else if (!isFirst) main.focus({ preventScroll: true });
    isSearchWanted = false;
}

const missing = (route) => ({
    title: 'Not found',
    element: el(
        'div',
        { class: 'view' },
        el('h1', null, 'There is no such view'),
        el('p', null, outside(route.id)),
        el('p', null, el('a', { href: '#/' }, 'Overview')),
    ),
});

const LINK_TEXTS = {
    live: 'live',
    connecting: 'connecting',
    paused: 'paused',
    stale: 'stale',
    token: 'token needed',
};
/** The names of the banners on the page. */
let shownBanners = '';
const staleSince = el('strong');
const staleReason = el('bdi', { class: 'outside' });
// It stays one element, so that a screen reader announces only texts that differ.
const staleBanner = el(
    'div',
    { class: 'banner banner-stale', id: 'stale-banner', role: 'alert' },
    el('span', null, staleSince, ': ', staleReason, '. Reconnecting.'),
    el('button', { type: 'button', onclick: retry }, 'Reconnect now'),
);

/** Banners above the view: lost connection, token, another version. */
function showLink() {
    const { state, since, problem } = store.link;
    byId('link-state').dataset.state = state;
    setText(byId('link-text'), LINK_TEXTS[state]);
    if (state === 'stale') {
        setText(staleSince, store.isLoaded ? `stale since ${clockTime(since)}` : 'not connected');
        setText(staleReason, `${problem?.detail ?? ''}${problem?.hint ? ` (${problem.hint})` : ''}`);
    }
    const version = store.version && `${store.version.version} ${store.version.commit}`;
    const names = [];
    if (state === 'stale' || state === 'token') names.push(state);
    if (version && version !== store.firstVersion) names.push('version');
    const mark = names.join(' ');
    if (mark === shownBanners) return;
    shownBanners = mark;
    const makers = { stale: () => staleBanner, token: tokenForm, version: versionBanner };
    replace(
        byId('banners'),
        names.map((name) => makers[name]()),
    );
    if (state === 'token') byId('token').focus();
}

const versionBanner = () =>
    el(
        'div',
        { class: 'banner banner-info', role: 'status' },
        el('span', null, 'The node runs another version of vipwatch than this page.'),
        el('button', { type: 'button', onclick: () => location.reload() }, 'Reload the page'),
    );

function tokenForm() {
    const field = el('input', {
        type: 'password',
        id: 'token',
        autocomplete: 'off',
        required: true,
        oninput: () => field.setCustomValidity(''),
    });
    const submit = (event) => {
        event.preventDefault();
        if (!isToken(field.value.trim())) {
            field.setCustomValidity(
                'A token has 16 to 512 characters: letters, digits, and the characters - . _ ~ + / =',
            );
            field.reportValidity();
            return;
        }
        replace(byId('banners'), el('div', { class: 'banner banner-info', role: 'status' }, 'Connecting…'));
        shownBanners = '';
        useToken(field.value.trim());
    };
    return el(
        'form',
        { class: 'banner banner-token', id: 'token-form', onsubmit: submit },
        el(
            'label',
            { for: 'token' },
            hasToken() ? 'The node rejects this token. Enter another one:' : 'This node requires a token:',
        ),
        field,
        el('button', { type: 'submit' }, 'Connect'),
        el('span', { class: 'faint' }, 'The token stays in this tab until it is closed.'),
    );
}

function showFrame() {
    setText(byId('node-name'), store.node ?? '');
    const findings = findingCount();
    byId('finding-count').hidden = findings === 0;
    setText(byId('finding-count'), count(findings));
    // Without a cluster, the view would only say that there is none.
    byId('cluster-link').hidden = (cluster.status?.connection ?? 'off') === 'off';
    const clusterFindings = cluster.status?.findings ?? 0;
    byId('cluster-count').hidden = clusterFindings === 0;
    setText(byId('cluster-count'), count(clusterFindings));
    if (store.version)
        setText(
            byId('footer-version'),
            `vipwatch ${store.version.version}${store.version.commit ? ` (${store.version.commit.slice(0, 12)})` : ''}`,
        );
    setText(byId('footer-zone'), `Times in ${zoneName()}; ages by the node’s clock`);
    if (view) document.title = visible(`${view.title} · ${store.node ?? 'vipwatch'}`);
}

/** Tells screen readers about transitions: a few by name, many as a number. */
function announce() {
    const transitions = takeAnnouncements();
    if (transitions.length === 0) return;
    const texts = transitions.slice(-3).map((one) => `${one.id} is ${one.to}`);
    setText(
        byId('live'),
        transitions.length > 3
            ? `${counted(transitions.length, 'transition')}, the last: ${texts.at(-1)}`
            : texts.join(', '),
    );
}

/** Keys: `/` focuses the search, `g` and a letter choose a view. */
let afterG = 0;
function key(event) {
    const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key === 'Escape' && isTyping) event.target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === '/') {
        event.preventDefault();
        if (view?.searchField) {
            view.searchField.focus();
        } else {
            isSearchWanted = true;
            location.hash = '#/';
        }
    } else if (event.key === 'g') {
        afterG = performance.now();
    } else if (performance.now() - afterG < 1500) {
        const target = { o: '#/', h: '#/history', f: '#/findings', c: '#/cluster' }[event.key];
        if (target) location.hash = target;
        afterG = 0;
    }
}

function themeButton() {
    const button = byId('theme-button');
    const name = () => setText(button, `Theme: ${window.vipwatchTheme.current()}`);
    button.addEventListener('click', () => {
        window.vipwatchTheme.next();
        name();
        document.dispatchEvent(new Event('vipwatch-theme'));
    });
    name();
}

document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault();
    main.focus();
});
addEventListener('hashchange', showRoute);
addEventListener('keydown', key);
onChange((parts) => {
    if (parts.has('link') || parts.has('version')) showLink();
    if (['status', 'findings', 'version', 'cluster'].some((part) => parts.has(part))) showFrame();
    view?.update?.(parts);
});
setInterval(tick, 1000);
setInterval(announce, ANNOUNCE_INTERVAL_MS);
if ('scrollRestoration' in history) history.scrollRestoration = 'manual';
themeButton();
showRoute();
showFrame();
start();
