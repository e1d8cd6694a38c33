// The page: which process is looked at, what is fetched when, and which panel gets it. Each panel is a module of its own.

import { openSource } from "./api.js";
import { ArenaMap } from "./arena.js";
import { BudgetControl } from "./budget.js";
import { CompressionControl } from "./compression.js";
import { MemoryChart, RatioChart } from "./charts.js";
import { EventList } from "./events.js";
import { byId, clock, el, percent, say } from "./format.js";
import { Headline } from "./headline.js";
import { History, POINTS, RANGES } from "./history.js";
import { KindsBar } from "./kinds.js";
import { MemoryParts } from "./memory_parts.js";
import { SlotTable } from "./slots.js";
import { showTables, Summary } from "./summary.js";
import { startTheme } from "./theme.js";
import { VerdictLine } from "./verdict.js";
import { WidthMap } from "./widths.js";

const SLOTS_SECONDS = 2;
const MANY_SLOTS = 500;
const MANY_SLOTS_SECONDS = 5;
const PARTS_SECONDS = 10;

class Page {
  constructor(source) {
    this.source = source;
    this.processes = [];
    this.figures = new Map(); // process id -> what /v1/stats says
    this.chosen = null; // process id
    this.turn = 0; // counts what was turned to: an answer for an earlier turn comes too late
    this.isPaused = false;
    this.history = new History(RANGES[1][1]);
    this.headline = new Headline();
    this.kinds = new KindsBar(byId("kinds"), byId("kinds-legend"));
    this.verdict = new VerdictLine(source, (action) => this.act(action));
    this.memory = new MemoryChart(byId("memory"), byId("memory-legend"), byId("memory-said"));
    this.fragmentation = new RatioChart(byId("fragmentation"), "fragmentation_ratio");
    this.widths = new WidthMap(byId("widths"), byId("widths-scale"), byId("widths-said"));
    this.arena = new ArenaMap(byId("arena"), byId("arena-legend"));
    this.slots = new SlotTable(byId("slots"), byId("slots-search"), byId("slots-count"));
    this.parts = new MemoryParts(source);
    this.partsAt = -Infinity;
    this.summary = new Summary(byId("summary"));
    this.events = new EventList(byId("events"));
    this.budget = new BudgetControl(source, (wholeJob) => this.selection(wholeJob));
    this.compression = new CompressionControl(source, (wholeJob) => this.selection(wholeJob));
    this.asked = new URLSearchParams(location.search).get("run"); // a link to a run names it
    this.isHeld = this.asked !== null;
  }

  async start() {
    this.listen();
    showTables(this.source.tables);
    await this.source.login().catch((problem) => this.connected(false, problem));
    this.budget.enable();
    this.refresh().catch((problem) => this.connected(false, problem));
    this.source.follow(
      (type, data) => this.receive(type, data),
      (isUp, problem) => this.connected(isUp, problem),
    );
    this.pollSlots();
  }

  listen() {
    byId("process").addEventListener("change", (event) => this.choose(event.target.value));
    byId("pause").addEventListener("click", () => this.pause(!this.isPaused));
    for (const [label, seconds] of RANGES) {
      const button = el(
        "button",
        { type: "button", class: "quiet", "aria-pressed": seconds === this.history.seconds },
        label,
      );
      button.addEventListener("click", () => this.range(seconds, button));
      byId("ranges").append(button);
    }
    startTheme(byId("theme"), () => {
      for (const panel of [this.memory, this.fragmentation, this.widths, this.arena]) panel.retheme();
    });
  }

  get process() {
    return this.processes.find((process) => process.id === this.chosen) ?? null;
  }

  get ranks() {
    return this.processes.filter((process) => process.job === this.process?.job);
  }

  selection(wholeJob) {
    return wholeJob ? { job: this.process.job } : { process: this.chosen };
  }

  /** Ask who is there, and look at somebody: who was looked at before, else the newest live process. */
  async refresh() {
    const { processes } = await this.source.get("v1/processes");
    const before = this.process?.state;
    this.processes = processes;
    const wanted = this.wanted();
    this.listProcesses(wanted);
    if (wanted !== this.chosen) await this.load(wanted);
    else if (!this.isPaused || this.process?.state !== before) this.render();
  }

  /** A run that ended stays in view until a newer one starts, or for good where somebody chose it. */
  wanted() {
    const byWorth = (a, b) => (b.state === "live") - (a.state === "live") || b.started_at - a.started_at;
    const [latest] = [...this.processes].sort(byWorth);
    const ranks = this.processes.filter(({ job, state }) => job === latest.job && state === latest.state);
    const [newest] = ranks.sort((a, b) => a.rank - b.rank);
    const asked = this.processes.find(({ id, pid }) => this.asked === id || this.asked === String(pid));
    this.asked = null;
    const current = asked ?? this.process;
    const isReplaced = current?.ended_at && newest.state === "live" && newest.started_at > current.ended_at;
    return current && (this.isHeld || !isReplaced) ? current.id : (newest?.id ?? null);
  }

  listProcesses(wanted) {
    document.body.dataset.mode = this.processes.length ? "showing" : "empty";
    byId("empty").hidden = this.processes.length > 0;
    byId("process").closest("label").hidden = !this.processes.length;
    byId("panels").hidden = !this.processes.length;
    const live = this.processes.filter(({ state }) => state === "live");
    const ended = this.processes.filter(({ state }) => state !== "live");
    ended.sort((a, b) => (b.ended_at ?? 0) - (a.ended_at ?? 0));
    const past = ended.length ? [el("optgroup", { label: "Ended" }, ...ended.map(option))] : [];
    byId("process").replaceChildren(...byJob(live), ...past);
    if (wanted) byId("process").value = wanted;
  }

  choose(id) {
    this.isHeld = true;
    history.replaceState(null, "", `${location.pathname}?${new URLSearchParams({ run: id })}`);
    return this.load(id);
  }

  /** Turn to process `id`: everything shown is fetched anew, what is cheap first. */
  async load(id) {
    const turn = (this.turn += 1);
    this.chosen = id;
    this.history = new History(this.history.seconds);
    this.headline.reset();
    this.events.clear();
    this.widths.clear();
    this.slots.update([]);
    this.verdict.clear();
    this.arena.clear();
    this.parts.clear();
    this.partsAt = -Infinity;
    byId("process").value = id;
    if (!id) return this.render();
    this.budget.reset();
    const query = { process: id };
    const [stats, history] = await Promise.all([
      this.source.get("v1/stats", query),
      this.source.get("v1/history", { ...query, seconds: this.history.seconds, points: POINTS }),
    ]);
    if (turn !== this.turn) return undefined;
    this.history.load(history);
    this.note(stats.processes);
    this.render();
    for (const part of [() => this.fetchSlots(), () => this.loadEvents(turn), () => this.loadWidths(turn)])
      await part().catch(() => {});
    return undefined;
  }

  async loadEvents(turn) {
    const { events } = await this.source.get("v1/events", { limit: 5000 });
    if (turn !== this.turn) return;
    this.events.clear();
    for (const event of events.filter(({ process }) => process === this.chosen).slice(-500))
      this.events.add(event.type, event);
  }

  async loadWidths(turn) {
    const answer = await this.source.get("v1/widths", { process: this.chosen });
    if (turn === this.turn) this.widths.load(answer);
  }

  async range(seconds, pressed) {
    for (const button of byId("ranges").children) button.setAttribute("aria-pressed", button === pressed);
    this.history = new History(seconds);
    this.history.load(await this.source.get("v1/history", { process: this.chosen, seconds, points: POINTS }));
    this.memory.isZoomed = this.fragmentation.isZoomed = false;
    this.render();
  }

  receive(type, data) {
    if (type === "stats") {
      this.note(data.processes);
      if (!this.isPaused) this.render();
    }
    const isGone =
      type === "stats" && this.process?.state === "live" && !data.processes.some((one) => one.process === this.chosen);
    if (type === "process" || isGone) this.refresh().catch(() => {});
    if (type !== "stats" && data.process === this.chosen && !this.isPaused) this.events.add(type, data);
  }

  note(processes) {
    for (const figures of processes) {
      this.figures.set(figures.process, figures);
      if (figures.process === this.chosen && figures.state === "live")
        this.history.add(figures.time, figures.values);
    }
  }

  render() {
    const figures = this.figures.get(this.chosen) ?? null;
    this.headline.show(this.process, figures, document.body.dataset.connection);
    this.renderRanks();
    this.budget.choose(this.process, this.ranks.length);
    this.compression.follow(this.process, figures?.values);
    if (!figures) return;
    this.budget.follow(figures);
    this.summary.update(figures.values);
    this.kinds.show(figures);
    if (this.history.times.length && !document.hidden) {
      this.memory.restLabel = this.process.state === "live" ? "now" : "at the end";
      this.memory.show(this.history);
      this.fragmentation.show(this.history);
    }
  }

  renderRanks() {
    const { ranks } = this;
    byId("ranks").hidden = ranks.length < 2;
    if (ranks.length < 2) return;
    if (byId("ranks").childElementCount !== ranks.length)
      byId("ranks").replaceChildren(...ranks.map((process) => this.rankButton(process)));
    ranks.forEach((process, i) => {
      const button = byId("ranks").children[i];
      const used = this.figures.get(process.id)?.derived.budget_used_ratio;
      button.setAttribute("aria-pressed", process.id === this.chosen);
      say(button, `rank ${process.rank}: ${process.state === "live" ? percent(used) : process.state}`);
    });
  }

  rankButton(process) {
    const button = el("button", { type: "button", class: "quiet" });
    button.addEventListener("click", () => {
      byId("process").value = process.id;
      this.choose(process.id);
    });
    return button;
  }

  async pollSlots() {
    for (;;) {
      const seconds = this.slots.rows.length > MANY_SLOTS ? MANY_SLOTS_SECONDS : SLOTS_SECONDS;
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      if (!this.source.isLive) return;
      if (this.process?.state === "live" && !this.isPaused && !document.hidden) await this.fetchSlots().catch(() => {});
    }
  }

  async fetchSlots() {
    const id = this.chosen;
    const [slots, map, verdict] = await Promise.all([
      this.source.get("v1/slots", { process: id }),
      this.source.get("v1/map", { process: id }).catch(() => null),
      this.source.get("v1/verdict", { process: id }).catch(() => null),
    ]);
    if (id !== this.chosen) return;
    this.slots.update(slots.slots);
    if (verdict) this.verdict.show(verdict.verdicts, this.process);
    this.headline.showBits(slots.slots);
    this.widths.add(slots.time, slots.slots);
    if (map) this.arena.update(map.map);
    if (performance.now() - this.partsAt < 1000 * PARTS_SECONDS) return;
    this.partsAt = performance.now();
    await this.parts.fetch(id);
  }

  /** Do what a verdict advises. */
  act({ budget_bytes: budget, resume }) {
    if (resume) this.compression.toggle();
    else if (budget) this.budget.wish(budget);
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    byId("pause").setAttribute("aria-pressed", isPaused);
    say(byId("pause"), isPaused ? "Unfreeze view" : "Freeze view");
    if (!isPaused) this.render();
  }

  connected(isUp, problem) {
    const before = document.body.dataset.connection;
    const wasUp = before !== "lost" && before !== "denied";
    const isDenied = problem?.status === 401;
    document.body.dataset.connection = isUp ? "up" : isDenied ? "denied" : "lost";
    say(byId("connection"), isUp || isDenied ? "" : "Connection lost, trying again …");
    // What changed before the stream was open was told to nobody: ask once more.
    if (isUp) (wasUp ? this.refresh() : this.resume()).catch(() => {});
    else this.render();
  }

  /** After a break: who is there may have changed, and the chart has a hole that the sidecar can fill. */
  resume() {
    const id = this.chosen;
    this.chosen = null;
    return this.refresh().then(() =>
      this.processes.some((process) => process.id === id) && id !== this.chosen ? this.load(id) : null,
    );
  }
}

function byJob(processes) {
  const jobs = Map.groupBy ? Map.groupBy(processes, (process) => process.job) : groupBy(processes);
  return [...jobs.values()].flatMap((ranks) =>
    ranks.length > 1
      ? [el("optgroup", { label: ranks[0].name || ranks[0].job }, ...ranks.map(option))]
      : ranks.map(option),
  );
}

/** Of an ended run also when it ended and its pid: many have one name. */
function option(process) {
  const { pid, name, rank, state, ending } = process;
  if (state === "live") return el("option", { value: process.id }, process.world_size > 1 ? `rank ${rank}` : name || `pid ${pid}`);
  const parts = [name || "run", process.world_size > 1 ? `rank ${rank}` : "", `pid ${pid}`, process.ended_at ? clock(process.ended_at) : ""];
  return el("option", { value: process.id }, `${parts.filter(Boolean).join(" · ")} (${ending?.how ?? state})`);
}

function groupBy(processes) {
  const jobs = new Map();
  for (const process of processes) jobs.set(process.job, [...(jobs.get(process.job) ?? []), process]);
  return jobs;
}

const source = openSource();
document.body.classList.toggle("recorded", !source.isLive);
export const page = new Page(source);
page.start();
