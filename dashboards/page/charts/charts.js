// The charts over time, by uPlot: stacked memory with the budget and its marks, and the fragmentation number.
/* global uPlot */

import { briefBytes, bytes, clock, el, labelFont, percent, say, themed } from "./format.js";

const SYNC = "daf-time";
const [HIDDEN_ABOVE, SHOWN_BELOW] = [2, 1.5]; // how many times what DAF holds lies outside: apart, so that it stays put
const MOST_ABOVE = 4; // how many times the stack a line may be and still be drawn
const BYTE_STEPS = Array.from({ length: 46 }, (_, i) => 2 ** i);
const MARKS = [
  { field: "evictions_total", label: "evictions", color: "--mark-evict", glyph: "▮" },
  { field: "budget_bytes", label: "budget changed", color: "--ink", glyph: "▲" },
  { field: "oom_total", label: "out of memory", color: "--bad", glyph: "✕" },
];

/** The lines over the stack. What plain training would need is drawn where it can be compared with the budget. */
const LINES = [
  { label: "budget", color: "--ink", dash: [7, 4], width: 2, read: (history) => history.values("budget_bytes") },
  { label: "without DAF", color: "--mark-plain", dash: [2, 3], width: 1.5, read: (history) => history.plainValues() },
];

/** What is stacked, bottom to top. What DAF holds comes first, so that the budget line compares with its upper edge. */
export function layersOf(history) {
  const planes = history.planes().filter(([, name]) => history.values(name).some((value) => value > 0));
  const named = planes.length ? planes : [[0, "plane_bytes"]];
  return [
    { field: "tensor_bytes", label: "tensors", color: "--tensor" },
    ...named.map(([position, field]) => ({
      field,
      label: planeLabel(position, planes.length),
      color: `--plane-${Math.min(position, 8)}`,
    })),
    { field: "cached_bytes", label: "cached", color: "--cached" },
    { field: "outside_bytes", label: "outside DAF", color: "--outside" },
  ];
}

function planeLabel(position, isSplit) {
  if (!isSplit) return "planes";
  return position === 0 ? "exact planes" : `bit ${position}`;
}

class TimeChart {
  constructor(box) {
    this.box = box;
    this.plot = null;
    this.isZoomed = false;
    this.onHover = () => {};
    new ResizeObserver(() => this.resize()).observe(box);
    box.addEventListener("keydown", (event) => this.key(event));
  }

  get size() {
    return { width: Math.max(120, this.box.clientWidth), height: Math.max(60, this.box.clientHeight) };
  }

  resize() {
    if (this.plot && (this.plot.width !== this.size.width || this.plot.height !== this.size.height))
      this.plot.setSize(this.size);
  }

  /** Make the plot anew: its series or the theme changed. */
  build(options, data) {
    this.plot?.destroy();
    this.plot = new uPlot({ ...this.size, ...this.common(), ...options }, data, this.box);
    this.plot.over.addEventListener("dblclick", () => this.unzoom());
    this.plot.root.setAttribute("aria-hidden", "true");
  }

  common() {
    return {
      legend: { show: false },
      cursor: {
        sync: { key: SYNC, setSeries: false },
        drag: { x: true, y: false, dist: 6 },
        points: { show: false },
        y: false,
      },
      padding: [20, 2.2 * labelFont().pixels, 0, 0],
      hooks: {
        setSelect: [
          (plot) => {
            if (plot.select.width > 0) this.isZoomed = true;
          },
        ],
        setCursor: [(plot) => this.onHover(plot.cursor.idx ?? null)],
        draw: [(plot) => this.draw(plot)],
      },
    };
  }

  axes(format, steps) {
    const { font, pixels } = labelFont();
    const common = {
      stroke: themed("--soft"),
      font,
      ticks: { show: false },
      grid: { stroke: themed("--line"), width: 1 },
    };
    return [
      {
        ...common,
        grid: { show: false },
        size: 2.2 * pixels,
        space: 7 * pixels,
        values: (_plot, splits, _i, _space, incr) => splits.map((t) => (incr >= 60 ? clock(t).slice(0, 5) : clock(t))),
      },
      {
        ...common,
        size: 6 * pixels,
        space: 2.6 * pixels,
        ...(steps ? { incrs: steps } : {}),
        values: (_plot, splits) => splits.map(format),
      },
    ];
  }

  setData(data) {
    if (!this.isZoomed) return this.plot.setData(data);
    const { min, max } = this.plot.scales.x;
    this.plot.setData(data, false);
    this.plot.setScale("x", { min, max });
  }

  zoom(min, max) {
    this.isZoomed = true;
    this.plot.setScale("x", { min, max });
  }

  unzoom() {
    this.isZoomed = false;
    this.plot.setData(this.plot.data);
  }

  key(event) {
    if (!this.plot || !this.plot.data[0].length) return;
    const { min, max } = this.plot.scales.x;
    const middle = (min + max) / 2;
    const actions = {
      ArrowLeft: () => this.move(-1),
      ArrowRight: () => this.move(1),
      "+": () => this.zoom((min + middle) / 2, (max + middle) / 2),
      "=": () => actions["+"](),
      "-": () => this.zoom(2 * min - middle, 2 * max - middle),
      Escape: () => this.unzoom(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Move the cursor by `steps` points, as the mouse would. */
  move(steps) {
    const [times] = this.plot.data;
    const from = this.plot.cursor.idx ?? times.length - 1;
    const index = Math.max(0, Math.min(times.length - 1, from + steps));
    this.plot.setCursor({ left: this.plot.valToPos(times[index], "x"), top: 10 });
    this.onStep(index);
  }

  onStep() {}
  draw() {}
}

export class MemoryChart extends TimeChart {
  constructor(box, legend, status) {
    super(box);
    this.legend = legend;
    this.status = status;
    this.drawn = ""; // the signature of what the plot shows
    this.restLabel = "now"; // what the legend shows while nobody points: the newest values, or the last ones
    this.hidden = new Set(); // fields that are not drawn
    this.isChosen = false; // whether a click on the legend decided that
    this.onHover = (index) => this.readOut(index);
    this.onStep = (index) => say(this.status, this.describe(index));
  }

  show(history) {
    if (!this.isChosen) this.hideWhatDwarfs(history);
    this.history = history;
    this.known = layersOf(history);
    this.layers = this.known.filter((layer) => !this.hidden.has(layer.field));
    const data = this.stacked();
    if (this.signature === this.drawn && this.plot) this.setData(data);
    else {
      this.drawn = this.signature;
      this.buildLegend();
      this.build(this.options(), data);
    }
    this.readOut(this.plot.cursor.idx ?? null);
  }

  get signature() {
    return [...this.known.map((layer) => layer.field), "but", ...this.hidden].join();
  }

  /** What lies outside DAF is hidden while it would make all the rest a thin line, until somebody chooses otherwise. */
  hideWhatDwarfs(history) {
    const highest = (field) => history.values(field).reduce((a, b) => Math.max(a, b), 0);
    const dwarfs = this.hidden.has("outside_bytes") ? SHOWN_BELOW : HIDDEN_ABOVE;
    if (highest("outside_bytes") > dwarfs * highest("resident_bytes")) this.hidden.add("outside_bytes");
    else this.hidden.delete("outside_bytes");
  }

  /** Rebuild with the colours of the theme in force. */
  retheme() {
    this.drawn = "";
    if (this.history) this.show(this.history);
  }

  stacked() {
    const { times } = this.history;
    const sum = new Float64Array(times.length);
    const stack = this.layers.map(({ field }) => {
      const column = this.history.values(field);
      return Array.from(sum, (_, i) => (sum[i] += column[i]));
    });
    return [times, ...stack, ...LINES.map((line) => line.read(this.history).map((value) => value || null))];
  }

  options() {
    const layers = this.layers.map((layer) => ({
      fill: themed(layer.color),
      stroke: themed("--panel"),
      width: 0.5,
      points: { show: false },
    }));
    const stepped = uPlot.paths.stepped({ align: 1 });
    const lines = LINES.map(({ color, dash, width }) => ({
      stroke: themed(color),
      width: (width * labelFont().pixels) / 12,
      dash,
      points: { show: false },
      paths: width > 1.5 ? stepped : undefined,
    }));
    return {
      series: [{}, ...layers, ...lines],
      bands: layers.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })),
      scales: { y: { range: (plot) => [0, this.top(plot)] } },
      axes: this.axes(briefBytes, BYTE_STEPS),
    };
  }

  /** The upper edge: all of the stack, and the lines unless they are so far above that the stack would vanish. */
  top(plot) {
    const [first, last] = plot.series[0].idxs ?? [0, plot.data[0].length - 1];
    const highest = (column) => column.slice(first, last + 1).reduce((a, b) => Math.max(a, b ?? 0), 0);
    const stack = Math.max(1, this.layers.length ? highest(plot.data[this.layers.length]) : 0);
    const lines = plot.data.slice(this.layers.length + 1).map(highest);
    return 1.08 * Math.max(stack, ...lines.map((line) => Math.min(MOST_ABOVE * stack, line)));
  }

  buildLegend() {
    const rows = [
      ...LINES,
      ...this.known.map((layer) => ({ ...layer, read: (history) => history.values(layer.field) })),
    ];
    this.readings = rows.map((row) => ({ ...row, node: el("b") }));
    this.time = el("li", { class: "time" });
    const items = this.readings.map((row) => el("li", {}, row.field ? this.toggle(row) : label(row)));
    const marks = MARKS.map((mark) => el("li", { class: "mark" }, colored(mark.glyph, mark.color), ` ${mark.label}`));
    this.legend.replaceChildren(this.time, ...items, ...marks);
  }

  /** A legend entry that takes its layer out of the stack and puts it back. */
  toggle(row) {
    const button = el("button", { type: "button", class: "layer", "aria-pressed": !this.hidden.has(row.field) });
    button.append(label(row));
    button.addEventListener("click", () => {
      this.isChosen = true;
      if (!this.hidden.delete(row.field)) this.hidden.add(row.field);
      button.setAttribute("aria-pressed", !this.hidden.has(row.field));
      this.layers = this.known.filter((layer) => !this.hidden.has(layer.field));
      this.build(this.options(), this.stacked());
      this.drawn = this.signature; // the legend is right already, and the button keeps its focus
    });
    return button;
  }

  readOut(index) {
    const at = index ?? this.history.times.length - 1;
    if (at < 0 || !this.readings) return;
    say(this.time, index === null ? this.restLabel : clock(this.history.times[at]));
    for (const row of this.readings) say(row.node, bytes(row.read(this.history)[at]));
  }

  describe(index) {
    this.readOut(index);
    const parts = this.readings.map((row) => `${row.label} ${row.node.textContent}`);
    return `${clock(this.history.times[index])}: ${parts.join(", ")}`;
  }

  draw(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    for (const mark of MARKS) this.drawMarks(plot, mark);
    this.drawBudgetAbove(plot);
    ctx.restore();
  }

  /** A budget far above all that is in use is said in words at the upper edge: its line would flatten the rest. */
  drawBudgetAbove(plot) {
    const { ctx, bbox } = plot;
    const [, last] = plot.series[0].idxs ?? [0, -1];
    const budget = this.history.values("budget_bytes")[last] ?? 0;
    if (budget <= plot.scales.y.max) return;
    const em = labelFont().pixels * devicePixelRatio;
    Object.assign(ctx, { fillStyle: themed("--ink"), font: `600 ${em}px ${themed("--font")}`, textAlign: "right" });
    ctx.fillText(`↑ budget ${briefBytes(budget)}`, bbox.left + bbox.width, bbox.top + 0.9 * em);
  }

  /** At most one mark a pixel column, whatever the number of changes. */
  drawMarks(plot, { field, color, glyph }) {
    const { ctx, bbox } = plot;
    const em = labelFont().pixels * devicePixelRatio;
    ctx.fillStyle = themed(color);
    ctx.font = `${em}px ${themed("--font")}`;
    ctx.textAlign = "center";
    let last = -Infinity;
    for (const { time } of this.history.changes(field)) {
      const x = Math.round(plot.valToPos(time, "x", true));
      if (x - last < em * (glyph === "▮" ? 0.2 : 0.7)) continue;
      last = x;
      if (glyph === "▮") ctx.fillRect(x - em / 16, bbox.top, em / 8, 0.7 * em);
      else ctx.fillText(glyph, x, bbox.top - 0.1 * em);
    }
  }
}

/** One ratio over time: small, beside the map that explains it. */
export class RatioChart extends TimeChart {
  constructor(box, field) {
    super(box);
    this.field = field;
  }

  show(history) {
    this.history = history;
    const data = [history.times, history.values(this.field)];
    if (this.plot) this.setData(data);
    else this.build(this.options(), data);
  }

  retheme() {
    if (!this.history) return;
    this.plot?.destroy();
    this.plot = null;
    this.show(this.history);
  }

  options() {
    return {
      series: [{}, { stroke: themed("--mark-evict"), width: 1.5, points: { show: false } }],
      scales: { y: { range: (_plot, _min, max) => [0, Math.max(0.05, Math.min(1, 1.15 * (max || 0)))] } },
      axes: this.axes(percent, undefined),
    };
  }
}

function label(row) {
  const text = document.createDocumentFragment();
  text.append(swatch(row), `${row.label} `, row.node);
  return text;
}

function swatch({ color, dash }) {
  return el("i", { class: dash ? "swatch line" : "swatch", style: `--swatch: var(${color})`, "aria-hidden": "true" });
}

function colored(text, color) {
  return el("i", { class: "glyph", style: `color: var(${color})`, "aria-hidden": "true" }, text);
}
