// The live list of what happened, newest first. A storm of evictions is one line that counts, not a thousand lines.

import { bytes, clock, count, el, say } from "./format.js";

const MAX_LINES = 200;
const MERGE_SECONDS = { evict: 2, trim: 60 }; // such events come in storms, or all the time
const REASONS = {
  tensor: "for a tensor",
  stash: "for an activation",
  budget: "for a smaller budget",
  hand: "on request",
};

export class EventList {
  constructor(list) {
    this.list = list;
    this.clear();
  }

  clear() {
    this.newest = null;
    this.lastId = 0;
    this.list.replaceChildren(el("li", { class: "none" }, "Nothing has happened yet."));
  }

  add(type, event) {
    if (event.id <= this.lastId) return; // it came both ways: asked for and by the stream
    this.lastId = event.id ?? this.lastId;
    const kind = kindOf(type, event);
    const [size, planes] = [event.num_bytes ?? 0, event.value || 1];
    if (this.newest?.kind === kind && event.time - this.newest.time < MERGE_SECONDS[kind]) {
      this.newest.count += planes;
      this.newest.bytes += size;
      say(this.newest.node.lastChild, textOf(kind, event, this.newest));
      return;
    }
    if (!this.newest) this.list.replaceChildren();
    this.newest = { kind, time: event.time, count: planes, bytes: size };
    this.newest.node = line(kind, event, this.newest);
    this.list.prepend(this.newest.node);
    while (this.list.childElementCount > MAX_LINES) this.list.lastChild.remove();
  }
}

function kindOf(type, event) {
  if (type === "process") return event.what;
  return type === "change" ? event.what : (event.kind ?? type);
}

function line(kind, event, merged) {
  return el(
    "li",
    { "data-kind": kind },
    el("time", {}, clock(event.time)),
    el("b", {}, kind),
    el("span", {}, textOf(kind, event, merged)),
  );
}

function textOf(kind, event, merged) {
  const size = merged.bytes ? bytes(merged.bytes) : "";
  if (kind === "evict") {
    const planes = `${count(merged.count)} plane${merged.count > 1 ? "s" : ""}`;
    return `${planes}, ${size} freed ${REASONS[event.text] ?? event.text}`;
  }
  if (kind === "trim") return `${size} ${event.text} given back to the system`;
  if (kind === "budget") {
    const change = `${bytes(event.before_bytes)} → ${bytes(event.budget_bytes)}: ${event.state}`;
    return event.reason ? `${change}, ${event.reason}` : change;
  }
  if (kind === "lost") return `${count(event.count)} events, most of them allocations, were overwritten unread`;
  return [size, event.reason, event.text, event.name].filter(Boolean).join(", ");
}
