// The run's own switch: stop compressing, and go on. Freezing the view is another thing, and another button.

import { byId, say } from "./format.js";

export class CompressionControl {
  constructor(source, selectionOf) {
    this.source = source;
    this.selectionOf = selectionOf;
    this.button = byId("compression");
    this.isStopped = false;
    this.button.addEventListener("click", () => this.toggle());
  }

  follow(process, values) {
    this.isStopped = Boolean(values?.is_paused);
    this.button.disabled = !this.source.canChange || process?.state !== "live";
    say(this.button, this.isStopped ? "Resume compressing" : "Stop compressing");
  }

  async toggle() {
    this.button.disabled = true;
    const wanted = !this.isStopped;
    try {
      const { state } = await this.source.post("v1/compression", this.selectionOf(false), { paused: wanted });
      const text = wanted
        ? "Compressing stopped: new activations are kept exact, as far as the budget allows."
        : "Compressing again.";
      this.tell(state, state === "applied" ? text : `Asked: ${state}.`);
    } catch (problem) {
      this.tell("refused", `Refused: ${problem.message}`);
    } finally {
      this.button.disabled = false;
    }
  }

  tell(state, text) {
    byId("outcome").dataset.state = state;
    say(byId("outcome"), text);
  }
}
