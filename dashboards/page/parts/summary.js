// What the run came to so far, and the tables that a report brings along.

import { byId, bytes, count, el, say, seconds } from "./format.js";

const ROWS = [
  ["Peak resident", (v) => bytes(v.peak_resident_bytes)],
  ["Activations, if kept exact", (v) => bytes(v.peak_saved_raw_bytes)],
  ["Activations, as stored", (v) => bytes(v.peak_saved_bytes)],
  ["Least budget so far", (v) => bytes(v.peak_held_bytes)],
  ["Steps", (v) => count(v.steps_total)],
  ["Mean step", (v) => seconds(v.step_seconds_total / v.steps_total)],
  ["Planes evicted for tensors", (v) => count(v.evictions_tensor_total)],
  ["… for activations", (v) => count(v.evictions_stash_total)],
  ["… for a smaller budget", (v) => count(v.evictions_budget_total)],
  ["Evicted", (v) => bytes(v.evicted_bytes_total)],
  ["Spilled", (v) => bytes(v.spilled_bytes)],
  ["Out of memory", (v) => count(v.oom_total)],
];

export class Summary {
  constructor(list) {
    this.cells = ROWS.map(([label, show]) => {
      const node = el("dd", {}, "–");
      list.append(el("dt", {}, label), node);
      return { node, show };
    });
  }

  update(values) {
    for (const { node, show } of this.cells) say(node, show(values));
  }
}

export function showTables(tables) {
  byId("tables").replaceChildren(...tables.map((table) => el("div", { class: "panel" }, tableElement(table))));
}

function tableElement({ title, columns, rows }) {
  const head = el("tr", {}, ...columns.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map(([label, ...cells]) =>
    el("tr", {}, el("th", { scope: "row", class: "text" }, label), ...cells.map((text) => el("td", {}, text))),
  );
  return el("table", {}, el("caption", {}, title), el("thead", {}, head), el("tbody", {}, ...body));
}
