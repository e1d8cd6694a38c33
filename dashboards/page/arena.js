// The map of the arena: what occupies it, cell by cell, in address order.

import { Canvas, pixel } from "./canvas.js";
import { bytes, el, percent, themed } from "./format.js";

const KINDS = [
  { kind: "tensor", label: "tensors", color: "--tensor" },
  { kind: "plane", label: "planes", color: "--plane-2" },
  { kind: "free", label: "free", color: "--cached" },
  { kind: "decommitted", label: "given back", color: "--hollow" },
];

export class ArenaMap extends Canvas {
  constructor(box, legend) {
    super(box, "Map of the arena");
    this.legend = legend;
    this.zones = [];
    this.labels = KINDS.map(({ kind, label, color }) => {
      const node = el("b");
      legend.append(el("li", {}, el("i", { class: "swatch", style: `--swatch: var(${color})`, "aria-hidden": "true" }), `${label} `, node));
      return { kind, label, node };
    });
  }

  clear() {
    this.update({ zones: [] });
  }

  /** Take over the map of /v1/map: zones, each with cells named by what they hold. */
  update(map) {
    this.zones = zonesOf(map);
    const total = new Map();
    for (const zone of this.zones) for (const cell of zone.cells) total.set(cell, (total.get(cell) ?? 0) + zone.cellBytes);
    const all = [...total.values()].reduce((a, b) => a + b, 0);
    for (const { kind, node } of this.labels) node.textContent = bytes(total.get(kind) ?? 0);
    this.describe(`Map of the arena: ${this.labels.map(({ kind, label }) => `${label} ${percent((total.get(kind) ?? 0) / (all || 1))}`).join(", ")}`);
    this.redraw();
  }

  retheme() {
    this.redraw();
  }

  draw(context, width, height) {
    context.fillStyle = themed("--panel");
    context.fillRect(0, 0, width, height);
    const cells = this.zones.flatMap((zone) => zone.cells);
    if (!cells.length) return;
    const size = Math.max(2, Math.floor(Math.sqrt((width * height) / cells.length)));
    const columns = Math.max(1, Math.floor(width / size));
    const rows = Math.ceil(cells.length / columns);
    context.imageSmoothingEnabled = false;
    context.drawImage(image(cells, columns, rows), 0, 0, columns * size, rows * size);
    if (size >= 5) drawGrid(context, columns, rows, size);
  }
}

function zonesOf(map) {
  return (map.zones ?? []).map((zone) => ({ cells: zone.cells, cellBytes: zone.cell_bytes }));
}

function image(cells, columns, rows) {
  const words = new Map(KINDS.map(({ kind, color }) => [kind, pixel(themed(color))]));
  const data = new Uint32Array(columns * rows).fill(pixel(themed("--panel")));
  cells.forEach((cell, i) => { data[i] = words.get(cell) ?? data[i]; });
  const canvas = new OffscreenCanvas(columns, rows);
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(data.buffer), columns, rows), 0, 0);
  return canvas;
}

function drawGrid(context, columns, rows, size) {
  context.fillStyle = themed("--panel");
  for (let x = 1; x < columns; x += 1) context.fillRect(x * size - 1, 0, 1, rows * size);
  for (let y = 1; y < rows; y += 1) context.fillRect(0, y * size - 1, columns * size, 1);
}
