// SPDX-License-Identifier: Apache-2.0
// The roles: their order, their letter, and their shape, by which they differ without colour.

import { svg } from './dom.js';

/** All roles, the most serious first. `removed` is only in the history. */
export const ROLES = ['fault', 'unknown', 'partial', 'primary', 'backup'];

const LETTERS = { fault: 'F', unknown: 'U', partial: 'H', primary: 'P', backup: 'B', removed: '×' };
const MEANINGS = {
    primary: 'this node holds all addresses that decide the role',
    partial: 'this node holds some of these addresses',
    backup: 'this node holds none of these addresses',
    fault: 'the namespace or the link is missing or down',
    unknown: 'the kernel could not be read',
    removed: 'the instance is no longer configured',
};

export const rank = (role) => {
    const index = ROLES.indexOf(role);
    return index < 0 ? ROLES.length : index;
};
export const letter = (role) => LETTERS[role] ?? '?';
export const meaning = (role) => MEANINGS[role] ?? 'a role of a later version';
export const isKnown = (role) => role in LETTERS;

// Paths in a square of 16 × 16.
const SHAPES = {
    primary: 'M1 1h14v14H1z',
    backup: 'M2.5 2.5h11v11h-11z',
    partial: 'M1 15V1h14z',
    fault: 'M1 1h14v14H1z',
    unknown: 'M8 1l7 7-7 7-7-7z',
    removed: 'M3 8h10',
};

/** The shape of a role as an image without a name: the role's word is beside it. */
export function icon(role) {
    const shape = svg('path', {
        d: SHAPES[role] ?? SHAPES.unknown,
        class: `shape shape-${isKnown(role) ? role : 'unknown'}`,
    });
    const cross = role === 'fault' ? svg('path', { d: 'M4.5 4.5l7 7m0-7l-7 7', class: 'shape-cross' }) : null;
    return svg('svg', { class: 'icon', viewBox: '0 0 16 16', 'aria-hidden': 'true', focusable: 'false' }, shape, cross);
}

/** Draws a cell of the map. `colors` has the colour of each role, `ink` that of marks on a filled cell. */
export function draw(context, role, x, y, size, colors) {
    const color = colors[role] ?? colors.unknown;
    context.fillStyle = color;
    context.strokeStyle = color;
    // Most cells are backups: a thin frame keeps the map calm.
    context.lineWidth = role === 'backup' ? 1 : Math.max(1, size / 9);
    const inset = context.lineWidth / 2;
    if (role === 'primary' || role === 'fault') {
        context.fillRect(x, y, size, size);
    } else if (role === 'partial') {
        context.beginPath();
        context.moveTo(x, y + size);
        context.lineTo(x, y);
        context.lineTo(x + size, y);
        context.fill();
        context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
    } else if (role === 'backup' && size < 12) {
        // A frame of this size would look like a filled cell.
        const dot = Math.round(size * 0.45);
        context.fillRect(x + (size - dot) / 2, y + (size - dot) / 2, dot, dot);
    } else if (role === 'backup') {
        context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
    } else {
        const half = size / 2;
        context.beginPath();
        context.moveTo(x + half, y + 0.5);
        context.lineTo(x + size - 0.5, y + half);
        context.lineTo(x + half, y + size - 0.5);
        context.lineTo(x + 0.5, y + half);
        context.closePath();
        context.stroke();
    }
    if (role === 'fault') drawCross(context, x, y, size, colors.ink);
    else if (size >= 16) drawLetter(context, role, x, y, size, role === 'primary' ? colors.ink : color);
}

function drawCross(context, x, y, size, color) {
    const inset = size * 0.28;
    context.strokeStyle = color;
    context.beginPath();
    context.moveTo(x + inset, y + inset);
    context.lineTo(x + size - inset, y + size - inset);
    context.moveTo(x + size - inset, y + inset);
    context.lineTo(x + inset, y + size - inset);
    context.stroke();
}

function drawLetter(context, role, x, y, size, color) {
    if (role === 'partial') return;
    context.fillStyle = color;
    context.fillText(letter(role), x + size / 2, y + size / 2 + 0.5);
}
