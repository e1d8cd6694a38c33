// The line that reads from across the room: what the run does, how full its budget is, what DAF saves, how fast.

import { age, bits, byId, bytes, clock, count, percent, say, seconds, times } from "./format.js";
import { Progress } from "./history.js";

const WORDS = {
  starting: "Starting",
  training: "Training",
  stalled: "Stalled",
  finished: "Finished",
  crashed: "Crashed",
  failed: "Failed",
  interrupted: "Interrupted",
  terminated: "Terminated",
  killed: "Crashed",
  "out of memory": "Out of memory",
  unreadable: "Unreadable",
  waiting: "Nothing runs",
  lost: "Offline",
  denied: "No access",
};

const DENIED = "Reading needs a link from the sidecar’s own machine: type “daf page” there, and open what it prints.";

export class Headline {
  constructor() {
    this.progress = new Progress();
  }

  reset() {
    this.progress = new Progress();
  }

  /**
   * Show one process. `figures` is what /v1/stats says of it, null while not known; `connection` is "lost" or "denied"
   * where what is known may be long past.
   */
  show(process, figures, connection) {
    const known = this.stateOf(process, figures);
    const state = connection in WORDS ? connection : known;
    document.body.dataset.state = state;
    say(byId("state"), WORDS[state] ?? state);
    const isPast = known !== state && figures !== null;
    const seen = isPast ? `${WORDS[known].toLowerCase()} when last seen, at ${clock(figures.time)}` : "";
    say(byId("run-name"), state === "denied" ? DENIED : describe(process, figures, seen));
    if (figures) this.showFigures(figures);
    document.title = figures
      ? `${WORDS[state]} · ${bytes(figures.values.resident_bytes)} · ${process.name || "DAF"}`
      : "DAF";
  }

  stateOf(process, figures) {
    if (!process) return "waiting";
    if (process.state !== "live") return process.ending?.how ?? process.state;
    return figures ? this.progress.judge(figures) : "starting";
  }

  showFigures({ values, derived }) {
    const { resident_bytes: resident = 0, budget_bytes: budget = 0 } = values;
    say(byId("resident"), bytes(resident));
    say(byId("of-budget"), budget > 0 ? `of ${bytes(budget)} budget` : "no budget");
    byId("fill").value = budget > 0 ? Math.min(1, resident / budget) : 0;
    say(byId("times"), times(derived.compression_ratio));
    this.showError(values);
    const cost = values.step_seconds > 0 ? values.overhead_seconds / values.step_seconds : 0;
    say(byId("cost"), cost > 0.001 ? `${percent(cost)} of it for DAF` : "");
    say(byId("step"), seconds(values.step_seconds));
    say(byId("steps"), values.steps_total > 0 ? `${count(values.steps_total)} done` : "");
    say(byId("evictions"), `${count(values.evictions_total ?? 0)} planes evicted`);
  }

  /** A traffic light that is also a word: up to 1% nobody notices, from 20% on training suffers. */
  showError({ expected_error_ratio: expected = 0, measured_error_ratio: measured = 0, steps_total: steps = 0 }) {
    const error = measured || expected;
    const [level, word] = error <= 0.01 ? ["good", "●"] : error <= 0.2 ? ["warn", "▲"] : ["bad", "✕"];
    byId("error").dataset.level = steps > 0 ? level : "";
    say(byId("error"), steps > 0 ? `${word} ${error ? percent(error) : "0"}` : "–");
    const wasMeasured = measured ? `measured; ${percent(expected)} expected` : "expected";
    say(byId("error-note"), steps > 0 ? (error ? wasMeasured : "nothing is lost") : "");
  }

  /** The mean width of what is kept, weighted by elements: known from the slots, not from the figures. */
  showBits(slots) {
    let total = 0,
      weight = 0;
    for (const slot of slots) {
      total += slot.bits * slot.raw_bytes;
      weight += slot.raw_bytes;
    }
    say(byId("bits"), weight > 0 ? bits(+(total / weight).toFixed(1)) : "–");
  }
}

function describe(process, figures, seen) {
  if (!process) return "";
  const parts = [process.name || `pid ${process.pid}`];
  if (process.world_size > 1) parts.push(`rank ${process.rank} of ${process.world_size}`);
  if (process.device) parts.push(process.device);
  if (process.ended_at) parts.push(`ran ${age(process.ended_at - process.started_at)}`);
  if (process.state === "live" && figures?.values.is_paused) parts.push("not compressing: stopped by command");
  if (process.ending && process.ending.text !== "finished") parts.push(process.ending.text);
  if (process.error) parts.push(process.error);
  return [...parts, seen].filter(Boolean).join(" · ");
}
