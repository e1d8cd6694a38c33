// The map of the arena: what its addresses hold, cell by cell, lowest address first.

import { Canvas } from "./canvas.js";
import { bytes, el, labelFont, percent, say, themed } from "./format.js";

const KINDS = [
  { kind: "tensor", label: "tensors", color: "--tensor" },
  { kind: "plane", label: "planes", color: "--plane-2" },
  { kind: "cached", label: "free, kept", color: "--cached" },
  { kind: "decommitted", label: "given back", color: "--hollow" },
];
const ZONE_NAMES = { tensor: "tensor zone", plane: "plane zone" };

export class ArenaMap extends Canvas {
  constructor(box, legend) {
    super(box, "Map of the arena");
    this.zones = [];
    this.readings = KINDS.map(({ kind, label, color }) => {
      const node = el("b");
      legend.append(
        el(
          "li",
          {},
          el("i", { class: "swatch", style: `--swatch: var(${color})`, "aria-hidden": "true" }),
          `${label} `,
          node,
        ),
      );
      return { kind, label, node };
    });
  }

  clear() {
    this.update({ zones: [] });
  }

  /** Take over the map of /v1/map: zones of equal cells, of each the share in use and the share only kept. */
  update({ zones }) {
    this.zones = zones.filter((zone) => zone.live.length);
    const total = totals(this.zones);
    const all = Object.values(total).reduce((a, b) => a + b, 0) || 1;
    for (const { kind, node } of this.readings) say(node, bytes(total[kind]));
    const parts = this.readings.map(({ kind, label }) => `${label} ${percent(total[kind] / all)}`);
    this.describe(`Map of the arena: ${parts.join(", ")}`);
    this.redraw();
  }

  retheme() {
    this.redraw();
  }

  draw(context, width, height) {
    context.fillStyle = themed("--panel");
    context.fillRect(0, 0, width, height);
    if (!this.zones.length) return;
    const { font, pixels } = labelFont();
    const size = this.cellSize(width, height, pixels);
    const columns = Math.floor(width / size);
    let top = 0;
    for (const zone of this.zones) {
      Object.assign(context, { font, fillStyle: themed("--soft"), textBaseline: "top" });
      context.fillText(`${ZONE_NAMES[zone.name] ?? zone.name}: a cell is ${bytes(zone.cell_bytes)}`, 0, top);
      top += 1.4 * pixels;
      drawZone(context, zone, { top, size, columns });
      top += Math.ceil(zone.live.length / columns) * size + 0.5 * pixels;
    }
  }

  /** The largest cells with which all zones and their labels fit. */
  cellSize(width, height, pixels) {
    for (let size = Math.round(2.5 * pixels); size > 3; size -= 1) {
      const columns = Math.floor(width / size);
      const rows = this.zones.reduce((sum, zone) => sum + Math.ceil(zone.live.length / columns), 0);
      if (rows * size + this.zones.length * 1.95 * pixels <= height) return size;
    }
    return 3;
  }
}

function totals(zones) {
  const total = { tensor: 0, plane: 0, cached: 0, decommitted: 0 };
  for (const { name, cell_bytes: size, live, cached } of zones) {
    live.forEach((share, i) => {
      total[name] += share * size;
      total.cached += cached[i] * size;
      total.decommitted += Math.max(0, 1 - share - cached[i]) * size;
    });
  }
  return total;
}

/** Each cell is a small glass: in use at the bottom, free but kept above it, the rest given back. */
function drawZone(context, zone, { top, size, columns }) {
  const inner = size > 4 ? size - 1 : size;
  const parts = [
    ["--hollow", () => 1],
    ["--cached", (i) => zone.live[i] + zone.cached[i]],
    [zone.name === "plane" ? "--plane-2" : "--tensor", (i) => zone.live[i]],
  ];
  for (const [color, share] of parts) {
    context.fillStyle = themed(color);
    for (let i = 0; i < zone.live.length; i += 1) {
      const tall = Math.min(1, share(i)) * inner;
      if (tall > 0)
        context.fillRect((i % columns) * size, top + Math.floor(i / columns) * size + inner - tall, inner, tall);
    }
  }
}
