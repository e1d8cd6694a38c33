// What to make of the run, in a sentence, with a button where one helps.

import { byId, bytes, say } from "./format.js";

export class VerdictLine {
  /** `act` gets what the verdict says could be done: { budget_bytes } or { resume }. */
  constructor(source, act) {
    this.source = source;
    this.act = act;
    this.found = null;
    byId("verdict-act").addEventListener("click", () => this.found && this.act(this.found.action));
  }

  clear() {
    this.show([], null);
  }

  show(verdicts, process) {
    const [found = null] = verdicts;
    this.found = found;
    byId("verdict").hidden = found === null;
    if (!found) return;
    byId("verdict").dataset.level = found.level;
    say(byId("verdict-text"), found.text);
    const label = process?.state === "live" && this.source.canChange ? labelOf(found.action) : "";
    byId("verdict-act").hidden = !label;
    say(byId("verdict-act"), label);
  }
}

function labelOf(action) {
  if (action.budget_bytes) return `Raise to ${bytes(action.budget_bytes)}`;
  return action.resume ? "Resume compressing" : "";
}
