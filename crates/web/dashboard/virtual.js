// SPDX-License-Identifier: Apache-2.0
// A list of any length of which only the rows on the screen exist. The page scrolls, not the list.

const OVERSCAN = 8;
const ORDER_DELAY_MS = 150;

/**
 * Rows of equal height in `container`. `make()` makes an empty row, `bind(row, item, index)` fills it. `keyOf(item)`
 * identifies an item: the focus stays with the item, not with the row. The rows are in the document in the order of the
 * list, so that the tabulator key and screen readers go through them in order.
 */
export class VirtualList {
    #container;
    #make;
    #bind;
    #keyOf;
    #items = [];
    #rows = [];
    #first = 0;
    #rowHeight = 0;
    #frame = null;
    #ordering = null;
    #onScroll = () => this.#schedule();
    #onResize = () => {
        this.#rowHeight = 0;
        this.#schedule();
    };

    constructor(container, make, bind, keyOf) {
        this.#container = container;
        this.#make = make;
        this.#bind = bind;
        this.#keyOf = keyOf;
        container.tabIndex = -1;
        addEventListener('scroll', this.#onScroll, { passive: true });
        addEventListener('resize', this.#onResize, { passive: true });
    }

    /** Ends the list. */
    close() {
        removeEventListener('scroll', this.#onScroll);
        removeEventListener('resize', this.#onResize);
        cancelAnimationFrame(this.#frame);
        clearTimeout(this.#ordering);
    }

    /** Shows these items, and fills all rows again. */
    show(items) {
        this.#keepFocus(() => {
            this.#items = items;
            this.#layout(true);
        });
    }

    /** Calls `act`, and gives the focus to the row that has the focused item then. If none has it, the list has the focus:
     * the enter key must not open another item. */
    #keepFocus(act) {
        const active = document.activeElement;
        const focused = this.#rows.find((row) => row.element.contains(active));
        if (focused === undefined) {
            act();
            return;
        }
        const wanted = this.#keyOf(this.#items[focused.index]);
        act();
        const row = this.#rows.find((one) => this.#keyOf(this.#items[one.index]) === wanted);
        if (row === focused && active.isConnected) return;
        const next = row?.element.querySelector('a') ?? this.#container;
        next.focus({ preventScroll: true });
    }

    #schedule() {
        this.#frame ??= requestAnimationFrame(() => {
            this.#frame = null;
            this.#keepFocus(() => this.#layout(false));
        });
    }

    #layout(isNew) {
        const isResized = this.#rowHeight === 0;
        if (isResized)
            this.#rowHeight = parseFloat(getComputedStyle(this.#container).getPropertyValue('--row-height')) || 36;
        const rowHeight = this.#rowHeight;
        const above = -this.#container.getBoundingClientRect().top;
        const count = Math.min(this.#items.length, Math.ceil(innerHeight / rowHeight) + 2 * OVERSCAN);
        const wanted = Math.floor(above / rowHeight) - OVERSCAN;
        const first = Math.max(0, Math.min(wanted, this.#items.length - count));
        if (isNew || isResized) this.#container.style.height = `${this.#items.length * rowHeight}px`;
        this.#resize(count);
        const moved = first - this.#first;
        this.#first = first;
        if (isNew || isResized || Math.abs(moved) >= count || this.#rows.some((row) => row.index === -1))
            this.#bindAll();
        else if (moved > 0) this.#moveDown(moved);
        else if (moved < 0) this.#moveUp(-moved);
    }

    #resize(count) {
        while (this.#rows.length > count) this.#rows.pop().element.remove();
        while (this.#rows.length < count) {
            const row = this.#make();
            row.index = -1;
            this.#rows.push(row);
            this.#container.append(row.element);
        }
    }

    #bindAll() {
        this.#rows.forEach((row, number) => this.#place(row, this.#first + number));
    }

    #place(row, index) {
        row.index = index;
        row.element.style.transform = `translateY(${index * this.#rowHeight}px)`;
        this.#bind(row, this.#items[index], index);
    }

    #moveDown(count) {
        const taken = this.#rows.splice(0, count);
        const base = this.#first + this.#rows.length;
        taken.forEach((row, number) => this.#place(row, base + number));
        this.#rows.push(...taken);
        this.#orderSoon();
    }

    #moveUp(count) {
        const taken = this.#rows.splice(this.#rows.length - count, count);
        taken.forEach((row, number) => this.#place(row, this.#first + number));
        this.#rows.unshift(...taken);
        this.#orderSoon();
    }

    /** While the page scrolls, rows keep their place in the document, because moving an element costs a new layout. */
    #orderSoon() {
        clearTimeout(this.#ordering);
        this.#ordering = setTimeout(() => this.#order(), ORDER_DELAY_MS);
    }

    /** Puts the elements in the order of the list. The one with the focus is not moved, because it would lose it. */
    #order() {
        const elements = this.#rows.map((row) => row.element);
        const focused = elements.findIndex((element) => element.contains(document.activeElement));
        if (focused < 0) {
            this.#container.append(...elements);
        } else {
            elements[focused].before(...elements.slice(0, focused));
            elements[focused].after(...elements.slice(focused + 1));
        }
    }
}
