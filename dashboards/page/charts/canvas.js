// A canvas that fills its box, sharp on every screen, redrawn when the box or the theme changes.

import { el } from "./format.js";

export class Canvas {
  constructor(box, label) {
    this.box = box;
    this.node = el("canvas", { role: "img", tabindex: "0", "aria-label": label });
    box.replaceChildren(this.node);
    this.context = this.node.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.redraw()).observe(box);
  }

  /** Size the canvas to its box and call `draw(context, width, height)` in CSS pixels. */
  redraw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.node.width !== w || this.node.height !== h) Object.assign(this.node, { width: w, height: h });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw(this.context, width, height);
  }

  describe(text) {
    if (this.node.getAttribute("aria-label") !== text) this.node.setAttribute("aria-label", text);
  }

  draw() {}
}

/** "#rrggbb" as the 32-bit word that ImageData holds on a little-endian machine. */
export function pixel(color) {
  const value = parseInt(color.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
