// The figures of one process over time, as columns: what the charts draw, and what the headline concludes from.

const MAX_POINTS = 1200;
export const RANGES = [
  ["5 min", 300],
  ["15 min", 900],
  ["1 h", 3600],
  ["6 h", 21600],
  ["24 h", 86400],
];
const PEAK_POINTS = 12;
export const POINTS = 720; // asked for at once: about two per pixel column on a phone, one on a desktop

/** Columns of one length, oldest first. Bounded: when they outgrow MAX_POINTS every other older point goes. */
export class History {
  constructor(seconds) {
    this.seconds = seconds;
    this.times = [];
    this.series = new Map();
  }

  /** Take over an answer of /v1/history. */
  load(answer) {
    this.times = [...answer.times];
    this.series = new Map(Object.entries(answer.series).map(([name, column]) => [name, [...column]]));
  }

  /** Append one sample; a later sample within one step of the last replaces it, so long ranges stay short. */
  add(time, values) {
    const last = this.times.length - 1;
    if (last >= 0 && time <= this.times[last]) return;
    const isSameStep = last >= 1 && time - this.times[last - 1] < this.seconds / POINTS;
    if (isSameStep) this.pop();
    this.times.push(time);
    for (const [name, value] of Object.entries(values)) this.column(name).push(value);
    for (const column of this.series.values()) if (column.length < this.times.length) column.push(0);
    this.trim(time - this.seconds);
  }

  pop() {
    this.times.pop();
    for (const column of this.series.values()) column.pop();
  }

  column(name) {
    let column = this.series.get(name);
    if (!column) this.series.set(name, (column = new Array(this.times.length - 1).fill(0)));
    return column;
  }

  /** The column `name`, or zeros where the process does not publish it. */
  values(name) {
    return this.series.get(name) ?? new Array(this.times.length).fill(0);
  }

  /**
   * What plain training would hold: the same, with the activations as they were. They come and go with every step,
   * and it is their peak that has to fit: each moment shows the highest of the last few.
   */
  plainValues() {
    const [planes, kept] = [this.values("plane_bytes"), this.values("saved_kept_bytes")];
    const raw = this.values("saved_raw_bytes");
    const plain = this.values("resident_bytes").map((resident, i) => resident - planes[i] - kept[i] + raw[i]);
    return plain.map((_, i) => Math.max(...plain.slice(Math.max(0, i + 1 - PEAK_POINTS), i + 1)));
  }

  trim(since) {
    let gone = this.times.findIndex((time) => time >= since);
    if (gone < 0) gone = this.times.length;
    if (this.times.length - gone > MAX_POINTS) gone = this.times.length - MAX_POINTS;
    if (gone < 16) return; // in batches: moving every column for each point would cost more than it saves
    for (const column of [this.times, ...this.series.values()]) column.splice(0, gone);
  }

  /** The bit positions that the process publishes bytes for, most significant first: [[position, name], ...]. */
  planes() {
    const found = [...this.series.keys()].map((name) => [
      Number(/^plane\D*_(\d+)(_bytes)?$/.exec(name)?.[1] ?? -1),
      name,
    ]);
    return found.filter(([position]) => position >= 0).sort((a, b) => a[0] - b[0]);
  }

  /** Moments where the counter `name` grew or the gauge changed: [{index, time, change}]. */
  changes(name) {
    const column = this.values(name);
    const found = [];
    for (let i = 1; i < column.length; i += 1) {
      const change = column[i] - column[i - 1];
      if (change !== 0) found.push({ index: i, time: this.times[i], change });
    }
    return found;
  }
}

const STALLED_STEPS = 8;
const STALLED_LEAST_SECONDS = 15;
const HEARTBEAT_LOST_SECONDS = 5;

/** Watches whether a live process gets on: one whose steps and stashes stand still is stalled. */
export class Progress {
  constructor() {
    this.done = -1;
    this.since = 0;
  }

  /** Return "starting", "training" or "stalled" for a live process with these figures. */
  judge(figures) {
    const { steps_total: steps = 0, reserves_total: reserves = 0, step_seconds: step = 0 } = figures.values;
    const done = steps + reserves;
    if (done !== this.done) {
      this.done = done;
      this.since = figures.time;
    }
    const patience = Math.max(STALLED_LEAST_SECONDS, STALLED_STEPS * step);
    if (figures.heartbeat_age_seconds > HEARTBEAT_LOST_SECONDS) return "stalled";
    if (done === 0) return "starting";
    return figures.time - this.since > patience ? "stalled" : "training";
  }
}
