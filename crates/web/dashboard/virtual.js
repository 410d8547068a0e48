// A list of any length of which only the rows on the screen exist. The page scrolls, not the list.

const OVERSCAN = 8;

/**
 * Rows of equal height in `container`. `make()` makes an empty row, `bind(row, item, index)` fills it. The rows are in
 * the document in the order of the list, so that the tabulator key and screen readers go through them in order.
 */
export class VirtualList {
  #container;
  #make;
  #bind;
  #items = [];
  #rows = [];
  #first = 0;
  #rowHeight = 0;
  #frame = null;
  #listen = () => this.#schedule();

  constructor(container, make, bind) {
    this.#container = container;
    this.#make = make;
    this.#bind = bind;
    addEventListener('scroll', this.#listen, { passive: true });
    addEventListener('resize', this.#listen, { passive: true });
  }

  /** Ends the list. */
  close() {
    removeEventListener('scroll', this.#listen);
    removeEventListener('resize', this.#listen);
    cancelAnimationFrame(this.#frame);
  }

  /** Shows these items, and fills all rows again. */
  show(items) {
    this.#items = items;
    this.#layout(true);
  }

  /** Scrolls until the item is on the screen, and returns its row. */
  reveal(index) {
    const top = this.#container.getBoundingClientRect().top + scrollY + index * this.#rowHeight;
    if (top < scrollY + 120 || top > scrollY + innerHeight - 2 * this.#rowHeight) scrollTo({ top: top - innerHeight / 2 });
    this.#layout(false);
    return this.#rows[index - this.#first];
  }

  #schedule() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#layout(false);
    });
  }

  #layout(isNew) {
    const rowHeight = parseFloat(getComputedStyle(this.#container).getPropertyValue('--row-height')) || 36;
    const isResized = rowHeight !== this.#rowHeight;
    this.#rowHeight = rowHeight;
    const above = -this.#container.getBoundingClientRect().top;
    const count = Math.min(this.#items.length, Math.ceil(innerHeight / rowHeight) + 2 * OVERSCAN);
    const wanted = Math.floor(above / rowHeight) - OVERSCAN;
    const first = Math.max(0, Math.min(wanted, this.#items.length - count));
    if (isNew || isResized) this.#container.style.height = `${this.#items.length * rowHeight}px`;
    this.#resize(count);
    const moved = first - this.#first;
    this.#first = first;
    if (isNew || isResized || Math.abs(moved) >= count || this.#rows.some((row) => row.index === -1)) this.#bindAll();
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
    this.#container.append(...taken.map((row) => row.element));
  }

  #moveUp(count) {
    const taken = this.#rows.splice(this.#rows.length - count, count);
    taken.forEach((row, number) => this.#place(row, this.#first + number));
    this.#rows.unshift(...taken);
    this.#container.prepend(...taken.map((row) => row.element));
  }
}
