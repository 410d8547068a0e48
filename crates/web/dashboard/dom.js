// Builds elements. Text from the node is never parsed as markup: it only becomes text nodes.

import { visible } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, properties, children) {
    for (const [name, value] of Object.entries(properties ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
        else if (value === true) element.setAttribute(name, '');
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
