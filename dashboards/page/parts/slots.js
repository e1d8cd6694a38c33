// The table of layers: sortable, searchable, and drawn only where one looks, so thousands of rows cost what thirty do.

import { bits, bytes, count, el, percent, plain, say, times } from "./format.js";

const ROW_PIXELS = 30;
const SPARE_ROWS = 8;
const COLUMNS = [
  { key: "name", label: "Layer", isText: true, show: (row) => row.name || `slot ${row.slot_id}` },
  { key: "op", label: "Op", isText: true, show: (row) => row.op },
  { key: "codec", label: "Codec", isText: true, show: (row) => row.codec },
  { key: "bits", label: "Bits", show: (row) => bits(row.bits) },
  { key: "raw_bytes", label: "Plain", show: (row) => bytes(row.raw_bytes) },
  { key: "stored_bytes", label: "Stored", show: (row) => bytes(row.stored_bytes) },
  { key: "ratio", label: "Times less", show: (row) => times(row.ratio) },
  {
    key: "importance",
    label: "Importance",
    tip: "How much gradient error a loss of precision here would cause",
    show: (row) => plain(row.importance),
  },
  {
    key: "fidelity",
    label: "Fidelity",
    tip: "Cosine between gradients from coded and from exact contents, in the worst op that reads this layer. A dash: not measured since its bits were planned anew",
    show: (row) => fidelity(row.fidelity),
  },
];

/** Near 1 the first decimal is what differs. */
function fidelity(cosine) {
  if (!(cosine > 0)) return "–";
  return cosine >= 0.9 && cosine < 0.9995 ? `${(100 * cosine).toFixed(1)}%` : percent(cosine);
}

export class SlotTable {
  constructor(box, search, status) {
    this.box = box;
    this.status = status;
    this.rows = [];
    this.shown = [];
    this.sort = { key: "stored_bytes", direction: -1 };
    this.query = "";
    this.build();
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(box);
    search.addEventListener("input", () => this.filter(search.value));
  }

  build() {
    this.headers = COLUMNS.map((column) => this.header(column));
    this.body = el("tbody");
    this.above = el("tr", { "aria-hidden": "true", class: "space" }, el("td", { colspan: COLUMNS.length }));
    this.below = el("tr", { "aria-hidden": "true", class: "space" }, el("td", { colspan: COLUMNS.length }));
    const head = el("thead", {}, el("tr", { "aria-rowindex": 1 }, ...this.headers));
    this.table = el(
      "table",
      {},
      el("caption", { class: "unseen" }, "Layers whose activations DAF keeps"),
      head,
      this.body,
    );
    this.box.replaceChildren(this.table);
    this.pool = [];
  }

  header(column) {
    const button = el("button", { type: "button", class: "sort", title: column.tip ?? null }, column.label);
    button.addEventListener("click", () => this.sortBy(column));
    return el("th", { scope: "col", class: column.isText ? "text" : null }, button);
  }

  update(slots) {
    this.rows = slots.map((slot) => ({
      ...slot,
      ratio: slot.stored_bytes > 0 ? slot.raw_bytes / slot.stored_bytes : 0,
    }));
    this.arrange();
  }

  sortBy(column) {
    const isSame = this.sort.key === column.key;
    this.sort = { key: column.key, direction: isSame ? -this.sort.direction : column.isText ? 1 : -1 };
    this.arrange();
  }

  filter(text) {
    this.query = text.trim().toLowerCase();
    this.box.scrollTop = 0;
    this.arrange();
  }

  arrange() {
    const { key, direction } = this.sort;
    const words = this.query.split(/\s+/).filter(Boolean);
    const matches = (row) => words.every((word) => `${row.name} ${row.op} ${row.codec}`.toLowerCase().includes(word));
    const order = (a, b) =>
      direction * (typeof a[key] === "string" ? compareText(a[key], b[key]) : a[key] - b[key]) || a.slot_id - b.slot_id;
    this.shown = (words.length ? this.rows.filter(matches) : [...this.rows]).sort(order);
    this.headers.forEach((header, i) => {
      const isSorted = COLUMNS[i].key === key;
      header.setAttribute("aria-sort", isSorted ? (direction > 0 ? "ascending" : "descending") : "none");
    });
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    say(this.status, this.countText());
    this.draw();
  }

  countText() {
    if (!this.rows.length) return "The run has named no layers yet.";
    const all = `${count(this.rows.length)} layers`;
    return this.shown.length === this.rows.length ? all : `${count(this.shown.length)} of ${all}`;
  }

  /** Fill a fixed set of row elements with the rows in view; the space rows keep the scroll bar true. */
  draw() {
    const visible = Math.ceil(this.box.clientHeight / ROW_PIXELS) + 2 * SPARE_ROWS;
    const first = Math.max(
      0,
      Math.min(this.shown.length - visible, Math.floor(this.box.scrollTop / ROW_PIXELS) - SPARE_ROWS),
    );
    const rows = this.shown.slice(first, first + visible);
    while (this.pool.length < rows.length) this.pool.push(rowElement());
    this.above.firstChild.style.height = `${first * ROW_PIXELS}px`;
    this.below.firstChild.style.height = `${(this.shown.length - first - rows.length) * ROW_PIXELS}px`;
    rows.forEach((row, i) => fill(this.pool[i], row, first + i));
    if (this.numDrawn !== rows.length)
      this.body.replaceChildren(this.above, ...this.pool.slice(0, rows.length), this.below);
    this.numDrawn = rows.length;
  }
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

function compareText(a, b) {
  return COLLATOR.compare(a, b);
}

function rowElement() {
  const cells = COLUMNS.map((column) =>
    el(column.key === "name" ? "th" : "td", {
      class: column.isText ? "text" : null,
      scope: column.key === "name" ? "row" : null,
    }),
  );
  cells[0].append(el("bdi"));
  return el("tr", {}, ...cells);
}

function fill(element, row, index) {
  element.setAttribute("aria-rowindex", index + 2);
  COLUMNS.forEach((column, i) => {
    const cell = element.children[i];
    const text = column.show(row);
    say(cell.firstElementChild ?? cell, text);
    if (column.isText && cell.title !== text) cell.title = text;
    if (column.key === "bits") cell.style.setProperty("--bits", Math.min(8, row.bits) / 8);
  });
}
