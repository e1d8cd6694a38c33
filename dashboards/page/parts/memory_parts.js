// Where memory goes: by module of the model, or by the line of Python that held it at the peak.

import { byId, bytes, el, percent, say } from "./format.js";
import { Icicle } from "./icicle.js";

const NUM_LINES = 8;

export class MemoryParts {
  constructor(source) {
    this.source = source;
    this.id = null;
    this.view = "modules";
    this.answers = {};
    this.icicle = new Icicle(byId("parts"), byId("parts-trail"), byId("parts-said"));
    for (const view of ["modules", "profile"]) byId(`parts-${view}`).addEventListener("click", () => this.turn(view));
    byId("parts-ask").addEventListener("click", () => this.ask().catch((problem) => say(byId("parts-said"), problem.message)));
  }

  clear() {
    this.id = null;
    this.answers = {};
    this.icicle.clear();
    byId("parts-lines").replaceChildren();
  }

  /** Fetch what there is of process `id`: the profile only where one was written. */
  async fetch(id) {
    this.id = id;
    const modules = await this.source.get("v1/modules", { process: id });
    const profile = modules.has_profile ? await this.source.get("v1/profile", { process: id }) : null;
    if (id !== this.id) return;
    this.answers = { modules, profile };
    if (!this.answers[this.view]) this.view = "modules";
    this.show();
  }

  turn(view) {
    this.view = view;
    this.icicle.clear();
    this.show();
  }

  async ask() {
    await this.source.post("v1/profile", { process: this.id, wait: 10 });
    await this.fetch(this.id);
    this.turn("profile");
  }

  show() {
    const { modules, profile } = this.answers;
    byId("parts-profile").disabled = !profile;
    byId("parts-ask").hidden = !this.source.canChange;
    for (const view of ["modules", "profile"]) byId(`parts-${view}`).setAttribute("aria-pressed", view === this.view);
    const answer = this.answers[this.view];
    byId("parts-panel").hidden = !modules?.tree.bytes && !profile;
    if (answer) this.icicle.show(answer.tree);
    byId("parts-lines").hidden = this.view !== "profile";
    if (profile) byId("parts-lines").replaceChildren(...profile.lines.slice(0, NUM_LINES).map((line) => lineOf(line, profile)));
  }
}

function lineOf({ file, line, function: name, bytes: size }, { peak_bytes: peak }) {
  const where = `${file.split("/").at(-1)}:${line}`;
  return el("li", { title: file }, el("b", {}, bytes(size)), ` ${percent(size / (peak || 1))} `, el("code", {}, where), ` ${name}`);
}
