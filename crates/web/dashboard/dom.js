// SPDX-License-Identifier: Apache-2.0
// Builds elements. Text from the node is never parsed as markup: it only becomes text nodes.

import { visible } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';
/** Elements with listeners, which belong to their content. */
const listening = new WeakSet();

function fill(element, properties, children) {
    for (const [name, value] of Object.entries(properties ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith('on')) {
            element.addEventListener(name.slice(2), value);
            listening.add(element);
        } else if (value === true) element.setAttribute(name, '');
        else element.setAttribute(name, value);
    }
    add(element, children);
    return element;
}

function add(element, children) {
    for (const child of children.flat(Infinity)) {
        if (child === null || child === undefined || child === false) continue;
        element.append(child instanceof Node ? child : visible(String(child)));
    }
}

/** An element with attributes (`onclick` and the like are listeners) and children: nodes, texts or lists of them. */
export function el(tag, properties, ...children) {
    return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties, ...children) {
    return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Text from the node, isolated from the direction of the text around it. */
export function outside(text, properties) {
    return el('bdi', { class: 'outside', ...properties }, text ?? '–');
}

/** Replaces the children of an element. */
export function replace(element, ...children) {
    element.replaceChildren();
    add(element, children);
}

/** Replaces the children of an element where they differ. The others stay, with the focus and the selected text; an element
 * that is replaced hands the focus over to the one with the same address or `data-key`. */
export function renew(element, ...children) {
    const next = element.cloneNode(false);
    add(next, children);
    const active = element.contains(document.activeElement) ? document.activeElement : null;
    const wanted = focusKey(active);
    patchChildren(element, next);
    if (wanted === null || (active.isConnected && focusKey(active) === wanted)) return;
    const found = [...element.querySelectorAll('[href], [data-key]')].find((one) => focusKey(one) === wanted);
    found?.focus({ preventScroll: true });
}

const focusKey = (element) => element?.getAttribute('href') ?? element?.dataset?.key ?? null;

function patchChildren(element, next) {
    const [shown, wanted] = [[...element.childNodes], [...next.childNodes]];
    wanted.forEach((node, index) => {
        if (index < shown.length) patch(shown[index], node);
        else element.append(node);
    });
    for (const node of shown.slice(wanted.length)) node.remove();
}

function patch(node, next) {
    if (node.isEqualNode(next)) return;
    const isSame = node.nodeName === next.nodeName && !listening.has(node) && !listening.has(next);
    if (!isSame) {
        node.replaceWith(next);
    } else if (node instanceof Text) {
        node.data = next.data;
    } else {
        patchAttributes(node, next);
        patchChildren(node, next);
    }
}

function patchAttributes(element, next) {
    const names = new Set([...element.getAttributeNames(), ...next.getAttributeNames()]);
    for (const name of names) {
        const value = next.getAttribute(name);
        // Whether details are open, the reader of the page decides.
        if (value === element.getAttribute(name) || (name === 'open' && element.nodeName === 'DETAILS')) continue;
        // The content security policy permits styles only as properties.
        if (name === 'style') element.style.cssText = next.style.cssText;
        else if (value === null) element.removeAttribute(name);
        else element.setAttribute(name, value);
    }
}

/** Sets a text only if it differs, so that the browser has nothing to do otherwise. */
export function setText(element, text) {
    const shown = visible(text);
    if (element.textContent !== shown) element.textContent = shown;
}

/** A heading and a body. */
export function panel(title, properties, ...children) {
    const id = `h-${title.toLowerCase().replace(/[^a-z]+/g, '-')}`;
    return el(
        'section',
        { class: 'panel', 'aria-labelledby': id, ...properties },
        el('h2', { id }, title),
        ...children,
    );
}

/** A table with a caption for screen readers. `rows` are lists of cells. */
export function table(caption, heads, rows, properties) {
    const head = el(
        'tr',
        null,
        heads.map((text) => el('th', { scope: 'col' }, text)),
    );
    const cells = (row) =>
        row.map((cell, column) =>
            cell instanceof HTMLTableCellElement ? cell : el('td', { 'data-head': heads[column] }, cell),
        );
    // On a phone, a table with many columns becomes a list.
    return el(
        'table',
        { class: heads.length > 4 ? 'data stack' : 'data', ...properties },
        el('caption', { class: 'hidden-text' }, caption),
        el('thead', null, head),
        el(
            'tbody',
            null,
            rows.map((row) => el('tr', null, cells(row))),
        ),
    );
}
