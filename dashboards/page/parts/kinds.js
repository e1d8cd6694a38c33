// Memory by kind as one bar against the budget, with a mark where plain training would be.

import { bytes, el, say } from "./format.js";

export const KINDS = [
  ["parameters", "parameters", "--kind-parameters"],
  ["gradients", "gradients", "--kind-gradients"],
  ["optimizer", "optimizer state", "--kind-optimizer"],
  ["exact", "activations, exact", "--kind-exact"],
  ["compressed", "activations, compressed", "--kind-compressed"],
  ["temporaries", "temporaries", "--kind-temporaries"],
  ["cached", "cached", "--cached"],
];
const ROOM = 1.25; // a budget far beyond the data would leave a sliver: the bar then ends here

export class KindsBar {
  constructor(bar, legend) {
    this.bar = bar;
    this.parts = KINDS.map(([key, label, color]) => {
      const part = el("i", { style: `background: var(${color})`, title: label });
      const number = el("b");
      const swatch = el("i", { class: "swatch", style: `--swatch: var(${color})`, "aria-hidden": "true" });
      const line = el("li", {}, swatch, `${label} `, number);
      bar.append(part);
      legend.append(line);
      return { key, label, part, number, line };
    });
    this.budget = el("span", { class: "mark" });
    this.plain = el("span", { class: "mark plain" });
    bar.append(this.budget, this.plain);
  }

  show({ values, derived, kinds = {} }) {
    const { budget_bytes: budget = 0, resident_bytes: resident = 0 } = values;
    const plain = derived.plain_bytes ?? 0;
    const needed = ROOM * Math.max(resident, plain);
    const scale = Math.max(resident, plain, Math.min(budget, needed)) || 1;
    for (const { key, part, number, line } of this.parts) {
      const size = kinds[key] ?? 0;
      part.style.width = `${(100 * size) / scale}%`;
      say(number, bytes(size));
      line.hidden = size === 0;
    }
    this.mark(this.budget, budget, scale, `budget ${bytes(budget)}`);
    this.mark(this.plain, plain > resident ? plain : 0, scale, `plain would need ${bytes(plain)}`);
    this.bar.setAttribute("aria-label", this.spoken(kinds, budget, plain));
  }

  mark(node, value, scale, text) {
    node.hidden = value <= 0;
    const share = value / scale;
    node.style.left = `${100 * Math.min(1, share)}%`;
    node.classList.toggle("left", share > 0.5);
    say(node, share > 1 ? `${text} →` : text);
  }

  spoken(kinds, budget, plain) {
    const parts = this.parts.filter(({ key }) => kinds[key]).map(({ key, label }) => `${label} ${bytes(kinds[key])}`);
    return `Memory by kind: ${parts.join(", ") || "nothing yet"}; budget ${bytes(budget)}; plain would need ${bytes(plain)}`;
  }
}
