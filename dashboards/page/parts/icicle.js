// A tree of bytes as rows of boxes: the whole on top, its parts below, as wide as they are large. A box can be entered.

import { bytes, el, percent, say } from "./format.js";

const ROWS = 8;
const LEAST_SHARE = 0.004; // of the width: less is no box that one could hit
const LETTER = 0.52; // width of a letter, of the page's own text: rather too much
const PADDING = 16;
const KINDS = ["parameters", "gradients", "optimizer", "activations"];

export class Icicle {
  /** `trail` shows the way from the whole to what is entered, `status` says it. */
  constructor(box, trail, status) {
    this.box = box;
    this.trail = trail;
    this.status = status;
    this.path = []; // names from the root's children down to what is entered
    this.root = null;
    box.addEventListener("keydown", (event) => this.move(event));
    let width = 0; // its height is what drawing sets
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - width) < 1) return;
      width = contentRect.width;
      this.draw();
    }).observe(box);
  }

  show(root) {
    this.root = root;
    this.draw();
  }

  clear() {
    this.path = [];
    this.root = null;
    this.box.replaceChildren();
    this.trail.replaceChildren();
  }

  /** The nodes from the root to what is entered; a name that is gone ends the way. */
  way() {
    const nodes = [this.root];
    for (const name of this.path) {
      const next = nodes.at(-1).children.find((child) => child.name === name);
      if (!next) break;
      nodes.push(next);
    }
    this.path = nodes.slice(1).map(({ name }) => name);
    return nodes;
  }

  draw() {
    if (!this.root) return;
    const held = document.activeElement?.dataset?.where;
    const nodes = this.way();
    const top = nodes.at(-1);
    this.trail.replaceChildren(...nodes.slice(0, -1).map((node, i) => this.step(node, i)), el("b", {}, top.name));
    const rows = [];
    this.lay(top, this.path, 0, 0, 1, top.bytes || 1, rows);
    this.box.style.setProperty("--rows", Math.max(...rows.map(({ row }) => row), 0) + 1);
    this.box.replaceChildren(...rows.map((part) => this.cell(part, top)));
    const again = held && [...this.box.children].find(({ dataset }) => dataset.where === held);
    (again ?? this.box.firstElementChild)?.setAttribute("tabindex", "0");
    if (again) again.focus({ preventScroll: true });
    say(this.status, `${top.name}: ${bytes(top.bytes)}, ${percent(top.bytes / (this.root.bytes || 1))} of the whole`);
  }

  lay(node, path, row, left, width, whole, rows) {
    rows.push({ node, path, row, left, width });
    if (row + 1 >= ROWS) return;
    let at = left;
    for (const child of node.children) {
      const share = child.bytes / whole;
      if (share >= LEAST_SHARE) this.lay(child, [...path, child.name], row + 1, at, share, whole, rows);
      at += share;
    }
  }

  step(node, depth) {
    const button = el("button", { type: "button", class: "quiet" }, node.name);
    button.addEventListener("click", () => this.enter(this.path.slice(0, depth)));
    return button;
  }

  cell({ node, path, row, left, width }, top) {
    const text = `${node.name}: ${bytes(node.bytes)}, ${percent(node.bytes / (top.bytes || 1))}`;
    const kind = KINDS.includes(node.name) ? node.name : "";
    const button = el(
      "button",
      { type: "button", tabindex: "-1", title: text, "aria-label": text, "data-kind": kind, "data-row": row },
      this.label(node, width),
    );
    button.dataset.where = path.join("\n");
    button.style.cssText = `left: ${100 * left}%; width: ${100 * width}%; top: calc(${row} * var(--row))`;
    button.addEventListener("click", () => this.enter(row === 0 ? path.slice(0, -1) : path));
    return button;
  }

  /** As much of name and size as the box has room for: nothing is cut off in the middle. */
  label({ name, bytes: size }, width) {
    const pixels = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const letters = (width * this.box.clientWidth - PADDING) / (LETTER * pixels);
    return [`${shortened(name)} ${bytes(size)}`, shortened(name)].find((text) => text.length <= letters) ?? "";
  }

  enter(path) {
    this.path = path;
    this.draw();
  }

  /** Arrows go to the neighbour on that side, Escape goes up. */
  move(event) {
    const cells = [...this.box.children];
    const here = cells.indexOf(document.activeElement);
    if (event.key === "Escape" && this.path.length) {
      this.enter(this.path.slice(0, -1));
      return;
    }
    if (here < 0 || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    const row = Number(cells[here].dataset.row);
    const next = { ArrowLeft: row, ArrowRight: row, ArrowUp: row - 1, ArrowDown: row + 1 }[event.key];
    const order = event.key === "ArrowLeft" || event.key === "ArrowUp" ? cells.slice(0, here).reverse() : cells.slice(here + 1);
    const found = order.find(({ dataset }) => Number(dataset.row) === next);
    if (!found) return;
    cells[here].setAttribute("tabindex", "-1");
    found.setAttribute("tabindex", "0");
    found.focus();
  }
}

/** The end of a path says more than its beginning. */
function shortened(name) {
  return name.length > 40 ? `…${name.slice(-39)}` : name;
}
