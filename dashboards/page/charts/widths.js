// Bits by layer over time: one row of pixels a layer, one column a moment.

import { Canvas, pixel } from "./canvas.js";
import { bits, clock, el, labelFont, say, themed } from "./format.js";

const MAX_COLUMNS = 480;
const LABEL_EMS = 13;
const LABEL_LEAST_WIDTH = 560;
const MAX_BITS = 8;

export class WidthMap extends Canvas {
  constructor(box, scale, status) {
    super(box, "Bits by layer over time");
    this.scale = scale;
    this.status = status;
    this.clear();
    this.node.addEventListener("pointermove", (event) => this.point(event.offsetX, event.offsetY));
    this.node.addEventListener("pointerleave", () => this.rest());
    this.node.addEventListener("keydown", (event) => this.key(event));
  }

  clear() {
    this.times = [];
    this.slots = [];
    this.bits = []; // bits[row][column]
    this.names = new Map();
    this.known = null;
    this.cursor = null;
    this.redraw();
  }

  /** Take over an answer of /v1/widths. */
  load(answer) {
    const rows = answer.runs.map(expand);
    const first = answer.slots.length ? firstColumn(rows) : answer.times.length;
    this.times = answer.times.slice(first);
    this.slots = [...answer.slots];
    this.known = null;
    this.bits = rows.map((row) => row.slice(first));
    this.stepSeconds = answer.step_seconds;
    this.redraw();
  }

  /** Add the present widths as the newest column, as the sidecar does: halved when full, so the run is always whole. */
  add(time, slots) {
    for (const slot of slots) this.names.set(slot.slot_id, slot.name || `slot ${slot.slot_id}`);
    if (!slots.length) return;
    const isNew = !this.times.length || time - this.times.at(-1) >= (this.stepSeconds ?? 1);
    if (isNew) this.append(time, new Map(slots.map((slot) => [slot.slot_id, slot.bits])));
    this.redraw();
  }

  append(time, widths) {
    if (this.times.length >= MAX_COLUMNS) this.halve();
    this.times.push(time);
    for (const slot of widths.keys()) {
      if (!this.known?.has(slot)) this.addRow(slot);
    }
    this.slots.forEach((slot, row) => this.bits[row].push(widths.get(slot) ?? null));
  }

  addRow(slot) {
    this.known ??= new Set(this.slots);
    if (this.known.has(slot)) return;
    this.known.add(slot);
    this.slots.push(slot);
    this.bits.push(new Array(this.times.length - 1).fill(null));
  }

  halve() {
    const everyOther = (_, i) => i % 2 === 0;
    this.times = this.times.filter(everyOther);
    this.bits = this.bits.map((row) => row.filter(everyOther));
    this.stepSeconds = 2 * (this.stepSeconds ?? 1);
  }

  retheme() {
    this.palette = null;
    this.redraw();
  }

  colors() {
    this.palette ??= {
      bits: Array.from({ length: MAX_BITS + 1 }, (_, i) => themed(`--bits-${i}`)),
      panel: themed("--panel"),
      soft: themed("--soft"),
      ink: themed("--ink"),
      ...labelFont(),
    };
    return this.palette;
  }

  draw(context, width, height) {
    const colors = this.colors();
    context.fillStyle = colors.panel;
    context.fillRect(0, 0, width, height);
    this.drawScale(colors);
    if (!this.times.length || !this.slots.length) return;
    const left = width >= LABEL_LEAST_WIDTH ? LABEL_EMS * colors.pixels : 0;
    this.area = { left, width: width - left, height: height - 1.6 * colors.pixels };
    context.imageSmoothingEnabled = this.slots.length > this.area.height;
    context.drawImage(this.image(colors), left, 0, this.area.width, this.area.height);
    this.drawLabels(context, colors, width, height);
    if (this.cursor) this.drawCursor(context, colors);
  }

  image(colors) {
    const [w, h] = [this.times.length, this.slots.length];
    const words = colors.bits.map(pixel);
    const nothing = pixel(colors.panel);
    const data = new Uint32Array(w * h);
    this.bits.forEach((row, y) => {
      for (let x = 0; x < w; x += 1)
        data[y * w + x] = row[x] == null ? nothing : words[Math.min(MAX_BITS, Math.round(row[x]))];
    });
    const canvas = new OffscreenCanvas(w, h);
    canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(data.buffer), w, h), 0, 0);
    return canvas;
  }

  drawLabels(context, colors, width, height) {
    const { left, height: tall } = this.area;
    Object.assign(context, { fillStyle: colors.soft, font: colors.font, textBaseline: "middle" });
    const rowPixels = tall / this.slots.length;
    const stride = Math.max(1, Math.ceil((1.35 * colors.pixels) / rowPixels));
    const first = Math.max(0, Math.ceil((0.6 * colors.pixels) / rowPixels - 0.5)); // whose label is not cut off above
    for (let row = first; left && row < this.slots.length; row += stride)
      context.fillText(shorten(context, this.nameOf(row), left - 10), 0, (row + 0.5) * rowPixels);
    context.textBaseline = "bottom";
    context.fillText(clock(this.times[0]), left, height);
    context.textAlign = "right";
    context.fillText(clock(this.times.at(-1)), width, height);
    context.textAlign = "left";
  }

  drawCursor(context, colors) {
    const { left, width, height } = this.area;
    const [w, h] = [width / this.times.length, height / this.slots.length];
    context.strokeStyle = colors.ink;
    context.lineWidth = 1.5;
    context.strokeRect(left + this.cursor.column * w, this.cursor.row * h - 1, Math.max(2, w), Math.max(3, h + 2));
  }

  drawScale(colors) {
    if (this.scale.childElementCount) return;
    const steps = colors.bits.map((_, i) => el("i", { style: `--swatch: var(--bits-${i})` }, String(i)));
    this.scale.replaceChildren(el("span", { class: "unseen" }, "Colours for the number of bits:"), ...steps, " bits");
  }

  nameOf(row) {
    return this.names.get(this.slots[row]) ?? `slot ${this.slots[row]}`;
  }

  point(x, y) {
    if (!this.area || !this.times.length) return;
    this.moveTo(
      Math.floor(((x - this.area.left) / this.area.width) * this.times.length),
      Math.floor((y / this.area.height) * this.slots.length),
    );
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!moves[event.key] || !this.times.length) return;
    event.preventDefault();
    const { column, row } = this.cursor ?? { column: this.times.length - 1, row: 0 };
    this.moveTo(column + moves[event.key][0], row + moves[event.key][1]);
    this.describe(this.status.textContent);
  }

  moveTo(column, row) {
    this.cursor = { column: clamp(column, this.times.length - 1), row: clamp(row, this.slots.length - 1) };
    const width = this.bits[this.cursor.row][this.cursor.column];
    const kept = width == null ? "not there" : `${bits(width)} bits`;
    say(this.status, `${this.nameOf(this.cursor.row)} at ${clock(this.times[this.cursor.column])}: ${kept}`);
    this.redraw();
  }

  rest() {
    this.cursor = null;
    say(this.status, this.slots.length ? "Point at a layer to read it, or use the arrow keys." : "");
    this.redraw();
  }
}

/** [3, 4, 2, null] are three moments at 4 bits and two without. */
function expand(runs) {
  const row = [];
  for (let i = 0; i < runs.length; i += 2) {
    for (let count = runs[i]; count > 0; count -= 1) row.push(runs[i + 1]);
  }
  return row;
}

/** The first moment at which any layer was there. */
function firstColumn(bits) {
  const starts = bits.map((row) => row.findIndex((width) => width != null)).filter((start) => start >= 0);
  return starts.length ? Math.min(...starts) : 0;
}

function clamp(value, most) {
  return Math.max(0, Math.min(most, value));
}

/** The end of a module path says more than its beginning. */
function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let cut = text;
  const isTooWide = () => context.measureText(`…${cut}`).width > width;
  while (cut.length > 4 && isTooWide()) cut = cut.slice(Math.max(1, cut.length >> 4));
  return `…${cut}`;
}
