// SPDX-License-Identifier: Apache-2.0
// The map: one cell for each instance. It is a canvas, because thousands of elements would be slow; the table below it
// has the same instances as text.

import { el, setText } from './dom.js';
import { draw, isKnown, meaning } from './roles.js';
import { instanceAddress, open } from './route.js';
import { needsAttention } from './store.js';
import { visible } from './format.js';

const MAX_CELL = 22;
const MIN_CELL = 7;
/** Small cells have a smaller gap, so that thousands are on the screen at once. */
const gapOf = (size) => (size < 12 ? 1 : 2);
/** The height in pixels that the map should not exceed. */
const WANTED_HEIGHT = 256;

const HELP = 'A corner mark: a finding or a failed delivery. Arrow keys go through the cells, Enter opens an instance.';
const COLORS = ['fault', 'unknown', 'partial', 'primary', 'backup'];

/** The map and the line below it that describes one cell. */
export class InstanceMap {
    #items = [];
    #selected = -1;
    #cell = MAX_CELL;
    #step = MAX_CELL + 2;
    #columns = 1;
    /** What each cell on the canvas shows, its images, and the sizes and colours for which these are valid. */
    #drawn = [];
    #sprites = new Map();
    #form = '';
    #canvas;
    #caption;
    #spoken;
    #scroller;
    #sizes = new ResizeObserver(() => this.#render());
    #scheme = matchMedia('(prefers-color-scheme: dark)');
    #redraw = () => this.#render();

    constructor() {
        this.#canvas = el('canvas', { class: 'map-canvas' });
        this.#caption = el('p', { class: 'map-caption' }, HELP);
        // Only the keys announce a cell: the mouse passes over many.
        this.#spoken = el('p', { class: 'hidden-text', role: 'status' });
        this.#scroller = el(
            'div',
            {
                class: 'map',
                role: 'application',
                tabindex: '0',
                'aria-label': 'Map of the instances',
                'aria-describedby': 'map-help',
                onkeydown: (event) => this.#key(event),
                onmousemove: (event) => this.#hover(event),
                onclick: (event) => this.#click(event),
                onmouseleave: () => this.#select(-1),
            },
            this.#canvas,
        );
        this.element = el(
            'div',
            { class: 'map-frame' },
            this.#scroller,
            this.#caption,
            this.#spoken,
            el(
                'p',
                { id: 'map-help', class: 'hidden-text' },
                'One cell for each instance, in the order of the table. The table has the same instances as text.',
            ),
        );
        this.#sizes.observe(this.#scroller);
        this.#scheme.addEventListener('change', this.#redraw);
        document.addEventListener('vipwatch-theme', this.#redraw);
    }

    close() {
        this.#sizes.disconnect();
        this.#scheme.removeEventListener('change', this.#redraw);
        document.removeEventListener('vipwatch-theme', this.#redraw);
    }

    /** Shows these instances. */
    show(items) {
        const id = this.#items[this.#selected]?.id;
        this.#items = items;
        this.#selected = id === undefined ? -1 : items.findIndex((item) => item.id === id);
        this.#render();
    }

    #layout() {
        const width = Math.max(100, this.#scroller.clientWidth);
        let cell = MAX_CELL;
        const stepOf = (size) => size + gapOf(size);
        const columnsOf = (size) => Math.max(1, Math.floor(width / stepOf(size)));
        const heightOf = (size) => Math.ceil(this.#items.length / columnsOf(size)) * stepOf(size);
        while (cell > MIN_CELL && heightOf(cell) > WANTED_HEIGHT) cell -= 1;
        this.#cell = cell;
        this.#step = stepOf(cell);
        this.#columns = columnsOf(cell);
        return { width, height: Math.max(cell, heightOf(cell)) };
    }

    /** Draws the cells that differ from what is on the canvas. */
    #render() {
        if (!this.element.isConnected) return;
        const { width, height } = this.#layout();
        const scale = devicePixelRatio || 1;
        const canvas = this.#canvas;
        const colors = themeColors(this.#scroller);
        const form = `${width} ${height} ${scale} ${this.#cell} ${colors.primary} ${colors.text}`;
        if (form !== this.#form) {
            this.#form = form;
            this.#drawn = [];
            this.#sprites = new Map();
            canvas.width = Math.round(width * scale);
            canvas.height = Math.round(height * scale);
            canvas.style.width = `${width}px`;
            canvas.style.height = `${height}px`;
        }
        const context = canvas.getContext('2d');
        context.setTransform(scale, 0, 0, scale, 0, 0);
        const step = this.#step;
        const count = Math.max(this.#items.length, this.#drawn.length);
        for (let index = 0; index < count; index += 1) {
            const key = keyOf(this.#items[index], index === this.#selected);
            if (this.#drawn[index] === key) continue;
            const [x, y] = [(index % this.#columns) * step, Math.floor(index / this.#columns) * step];
            context.clearRect(x, y, step, step);
            if (key !== null) context.drawImage(this.#sprite(key, scale, colors), x, y, step, step);
            this.#drawn[index] = key;
        }
        this.#drawn.length = this.#items.length;
    }

    /** An image of a cell. BOUND: one for each role, with and without each of the two marks. */
    #sprite(key, scale, colors) {
        const known = this.#sprites.get(key);
        if (known) return known;
        const [role, isMarked, isSelected] = key.split(' ');
        const size = this.#cell;
        const sprite = document.createElement('canvas');
        sprite.width = Math.round(this.#step * scale);
        sprite.height = sprite.width;
        const context = sprite.getContext('2d');
        context.scale(sprite.width / this.#step, sprite.height / this.#step);
        context.font = `600 ${Math.round(size * 0.58)}px system-ui, sans-serif`;
        context.textAlign = 'center';
        context.textBaseline = 'middle';
        const inset = (this.#step - size) / 2;
        draw(context, role, inset, inset, size, colors);
        if (isMarked === 'true') drawMark(context, inset + size, inset, Math.max(3, size * 0.36), colors.mark);
        if (isSelected === 'true') {
            context.strokeStyle = colors.text;
            context.lineWidth = 2;
            context.strokeRect(1, 1, this.#step - 2, this.#step - 2);
        }
        this.#sprites.set(key, sprite);
        return sprite;
    }

    #select(index) {
        if (index === this.#selected) return;
        this.#selected = index;
        this.#render();
        const item = this.#items[index];
        const notes =
            item && needsAttention(item) ? [...item.findings, ...item.failures.map((one) => `${one.stage} fails`)] : [];
        setText(
            this.#caption,
            item
                ? `${item.id} · ${item.role} (${meaning(item.role)})${notes.length > 0 ? ` · ${notes.join(', ')}` : ''}`
                : HELP,
        );
        this.#scroller.setAttribute(
            'aria-label',
            item ? `Map of the instances: ${visible(item.id)}, ${item.role}` : 'Map of the instances',
        );
    }

    #at(event) {
        const box = this.#canvas.getBoundingClientRect();
        const step = this.#step;
        const column = Math.floor((event.clientX - box.left) / step);
        const index = Math.floor((event.clientY - box.top) / step) * this.#columns + column;
        return column >= 0 && column < this.#columns && index >= 0 && index < this.#items.length ? index : -1;
    }

    #hover(event) {
        this.#select(this.#at(event));
    }

    #click(event) {
        const item = this.#items[this.#at(event)];
        if (item) open(instanceAddress(item.id));
    }

    #key(event) {
        const steps = {
            ArrowRight: 1,
            ArrowLeft: -1,
            ArrowDown: this.#columns,
            ArrowUp: -this.#columns,
            Home: -Infinity,
            End: Infinity,
        };
        if (event.key === 'Enter' && this.#items[this.#selected]) {
            open(instanceAddress(this.#items[this.#selected].id));
        } else if (event.key in steps && this.#items.length > 0) {
            const from = this.#selected < 0 ? (steps[event.key] > 0 ? -1 : 1) : this.#selected;
            this.#select(Math.max(0, Math.min(this.#items.length - 1, from + steps[event.key])));
            setText(this.#spoken, this.#caption.textContent);
            const top = Math.floor(this.#selected / this.#columns) * this.#step;
            const { scrollTop, clientHeight } = this.#scroller;
            if (top < scrollTop || top + this.#cell > scrollTop + clientHeight)
                this.#scroller.scrollTop = top - clientHeight / 2;
        } else {
            return;
        }
        event.preventDefault();
    }
}

/** What a cell looks like; null for no cell. */
function keyOf(item, isSelected) {
    if (item === undefined) return null;
    return `${isKnown(item.role) ? item.role : 'unknown'} ${item.findings.length > 0 || item.failures.length > 0} ${isSelected}`;
}

/** A mark in the upper right corner: something is wrong with the instance, whatever its role is. */
function drawMark(context, right, top, size, color) {
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(right, top);
    context.lineTo(right, top + size);
    context.lineTo(right - size, top);
    context.fill();
}

/** The colours of the page, which depend on the theme. A custom property has them as they are written; `color` resolves it. */
function themeColors(element) {
    const probe = el('span');
    element.append(probe);
    const style = getComputedStyle(probe);
    const value = (name) => {
        probe.style.color = `var(--${name})`;
        return style.color;
    };
    const colors = Object.fromEntries(COLORS.map((role) => [role, value(role)]));
    const all = { ...colors, ink: value('on-role'), text: value('text'), mark: value('mark') };
    probe.remove();
    return all;
}
