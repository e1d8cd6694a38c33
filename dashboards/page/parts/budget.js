// The budget: a slider and a field that follow each other, what a change would cost, and what became of it.

import { bits, briefBytes, byId, bytes, count, el, isSize, say } from "./format.js";

const PREVIEW_DELAY_MS = 250;
const SHOWN_SLOTS = 5;
const STEPS = 400; // of the slider

export class BudgetControl {
  constructor(source, selectionOf) {
    this.source = source;
    this.selectionOf = selectionOf; // (wholeJob) => query of the process or job that is chosen
    this.text = byId("budget-text");
    this.slider = byId("budget-slider");
    this.apply = byId("budget-apply");
    this.all = byId("budget-all");
    this.reset();
    this.text.addEventListener("input", () => this.typed());
    this.slider.addEventListener("input", () => this.slid());
    this.all.addEventListener("change", () => this.previewSoon());
    byId("budget-reset").addEventListener("click", () => this.reset());
    byId("budget-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** Forget what was being entered: show what is in force. */
  reset() {
    this.isEditing = false;
    this.isRejected = false; // what is entered is known to be no budget
    clearTimeout(this.timer);
    byId("preview").replaceChildren();
    say(byId("outcome"), "");
    if (this.figures) this.follow(this.figures);
    this.enable();
  }

  /** New figures came: the control shows them unless somebody is just entering something else. */
  follow(figures) {
    this.figures = figures;
    const {
      budget_bytes: budget = 0,
      held_bytes: held = 0,
      last_step_held_bytes: lastStep = 0,
      peak_resident_bytes: peak = 0,
      initial_budget_bytes: initial = 0,
    } = figures.values;
    this.least = Math.min(Math.max(lastStep, held), budget);
    this.most = 1.5 * Math.max(this.highest ?? 0, budget, peak, initial);
    this.highest = Math.max(this.highest ?? 0, budget);
    say(byId("budget-least"), `least ${bytes(this.least)}`);
    say(byId("budget-most"), bytes(this.most));
    if (!this.isEditing && budget > 0) this.place(budget);
  }

  place(budget) {
    this.text.value = briefBytes(budget);
    this.placeSlider(budget);
  }

  placeSlider(budget) {
    this.slider.value = Math.round((STEPS * (budget - this.least)) / (this.most - this.least || 1));
    this.slider.setAttribute("aria-valuetext", bytes(budget));
  }

  get isAlive() {
    return this.process?.state === "live";
  }

  choose(process, numRanks) {
    if (this.process?.id !== process?.id) this.highest = 0;
    this.process = process;
    byId("budget-all-row").hidden = numRanks < 2;
    if (numRanks < 2) this.all.checked = false;
    this.enable();
  }

  enable() {
    const isUsable = this.source.canChange && this.isAlive;
    for (const control of [this.text, this.slider, this.all]) control.disabled = !isUsable;
    this.apply.disabled = !isUsable || !this.isEditing || this.isRejected;
    if (!this.isAlive) this.remark(this.process ? "The run has ended: its budget can no longer change." : "");
    else if (!this.source.canChange)
      this.remark("Looking only. To change the budget, open the page with the link that “daf page” prints.");
  }

  /** Say something that is the outcome of nothing. */
  remark(text) {
    delete byId("outcome").dataset.state;
    say(byId("outcome"), text);
  }

  slid() {
    const wanted = this.least + ((this.most - this.least) * this.slider.value) / STEPS;
    this.text.value = briefBytes(wanted);
    this.slider.setAttribute("aria-valuetext", bytes(wanted));
    this.edited();
  }

  typed() {
    this.edited();
  }

  edited() {
    this.isEditing = true;
    this.isRejected = false;
    say(byId("outcome"), "");
    this.enable();
    this.previewSoon();
  }

  previewSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.preview(), PREVIEW_DELAY_MS);
  }

  async preview() {
    const asked = this.text.value;
    if (!isSize(asked)) return this.objectTo(`“${asked}” is not a size. Write it as 1.5GiB, 800MB or 50%.`);
    try {
      const answer = await this.source.put(
        "v1/budget",
        { ...this.selectionOf(this.all.checked), dry_run: true },
        { budget: asked },
      );
      if (asked !== this.text.value || !this.isEditing) return undefined; // a newer question is on its way
      const { outcomes } = answer;
      if (document.activeElement !== this.slider) this.placeSlider(outcomes[0].budget_bytes);
      byId("preview").replaceChildren(...outcomes.flatMap((outcome) => explain(outcome, outcomes.length > 1)));
    } catch (problem) {
      this.objectTo(problem.message);
    }
    return undefined;
  }

  objectTo(text) {
    byId("preview").replaceChildren(el("p", { class: "refused" }, text));
    this.isRejected = true;
    this.enable();
  }

  /** Enter a budget for the reader and ask for it. */
  wish(budget) {
    this.text.value = briefBytes(budget);
    this.edited();
    clearTimeout(this.timer);
    return this.send();
  }

  async send() {
    this.apply.disabled = true;
    say(byId("outcome"), "Asking …");
    byId("outcome").dataset.state = "pending";
    try {
      const answer = await this.source.put(
        "v1/budget",
        { ...this.selectionOf(this.all.checked), wait: 5 },
        { budget: this.text.value },
      );
      this.tell(answer.state, answer.outcomes.map(applied).join(" "));
    } catch (problem) {
      this.tell("refused", `Refused: ${problem.message}`);
    }
  }

  tell(state, text) {
    this.isEditing = state === "refused";
    clearTimeout(this.timer);
    byId("preview").replaceChildren();
    this.enable();
    byId("outcome").dataset.state = state;
    say(byId("outcome"), text);
  }
}

function applied(outcome) {
  if (outcome.state === "pending") return `Pending: ${outcome.reason || "the run frees what it can as it goes on"}.`;
  return `Applied: ${bytes(outcome.budget_bytes)}, after ${(1000 * outcome.seconds).toFixed(0)} ms.`;
}

function explain({ process, preview, resident_bytes: resident, budget_bytes: budget }, isOneOfMany) {
  const title = isOneOfMany ? [el("h3", {}, process)] : [];
  if (!preview.freed_bytes)
    return [
      ...title,
      el(
        "p",
        {},
        `Nothing is evicted: ${bytes(resident)} are resident, ${bytes(Math.max(0, budget - resident))} stay free.`,
      ),
    ];
  const [freed, cached, evicted] = [preview.freed_bytes, preview.cached_bytes, preview.evicted_bytes].map(bytes);
  const layers = `${count(preview.slots.length)} layer${preview.slots.length === 1 ? "" : "s"}`;
  const text = preview.evicted_bytes
    ? `Would free ${freed}: ${cached} cached, ${evicted} of planes from ${layers}.`
    : `Would free ${freed}: ${cached} are only cached, and no planes are evicted.`;
  return [...title, el("p", {}, text), ...warning(preview.short_bytes), ...slotList(preview.slots)];
}

function warning(shortBytes) {
  if (!shortBytes) return [];
  const text = `${bytes(shortBytes)} cannot be freed by dropping bits: the change would be refused, or wait.`;
  return [el("p", { class: "refused" }, text)];
}

function slotList(slots) {
  if (!slots.length) return [];
  const rows = slots
    .slice(0, SHOWN_SLOTS)
    .map((slot) =>
      el(
        "li",
        {},
        el("span", {}, slot.name || `slot ${slot.slot}`),
        el("b", {}, `${bits(slot.bits)} → ${bits(slot.bits_after)} bits`),
      ),
    );
  const more =
    slots.length > SHOWN_SLOTS ? [el("li", { class: "hint" }, `and ${slots.length - SHOWN_SLOTS} more layers`)] : [];
  return [el("ul", {}, ...rows, ...more)];
}
