// Where the figures come from: the sidecar, or a recording that a report carries. Both answer the same questions.

const KEY = "daf-session";
const RETRY_SECONDS = [0.5, 1, 2, 4];
const SILENCE_SECONDS = 20; // the sidecar says something at least every 15 s

/** A refusal of the sidecar (problem details), or no answer at all (status 0). */
export class Problem extends Error {
  constructor(status, detail, body = {}) {
    super(detail);
    this.status = status;
    this.body = body;
  }
}

export class Sidecar {
  constructor() {
    this.isLive = true;
    this.tables = [];
    this.lastEventId = "";
  }

  get canChange() {
    return sessionStorage.getItem(KEY) !== null;
  }

  /** Trade the one-time code of the link that opened the page for a session key; the code leaves the address bar. */
  async login() {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (!code) return;
    history.replaceState(null, "", location.pathname + location.search);
    try {
      const { key } = await this.send("POST", "v1/login", {}, { code });
      sessionStorage.setItem(KEY, key);
    } catch (problem) {
      if (problem.status !== 401) throw problem; // a code is good once: a reload with it is no error
    }
  }

  get(path, query) {
    return this.send("GET", path, query);
  }

  put(path, query, body) {
    return this.send("PUT", path, query, body);
  }

  post(path, query, body) {
    return this.send("POST", path, query, body);
  }

  async send(method, path, query = {}, body = undefined) {
    const options = { method, headers: this.headers(), cache: "no-store" };
    if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers["Content-Type"] = "application/json";
    }
    let answer;
    try {
      answer = await fetch(withQuery(path, query), options);
    } catch {
      throw new Problem(0, "The sidecar does not answer");
    }
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) throw this.refused(answer.status, content);
    return content;
  }

  refused(status, content) {
    if (status === 401) sessionStorage.removeItem(KEY); // the sidecar was restarted: its sessions are gone
    return new Problem(status, content.detail || `The sidecar answered ${status}`, content);
  }

  headers() {
    const key = sessionStorage.getItem(KEY);
    return key ? { Authorization: `Bearer ${key}` } : {};
  }

  /**
   * Follow the event stream for ever. `onEvent(type, data)` gets what comes, `onState(isConnected, problem)` what
   * becomes of the connection. EventSource would be shorter, but it can send no Authorization header and gives up on
   * an error.
   */
  async follow(onEvent, onState) {
    for (let failures = 0; ; failures += 1) {
      let problem = null;
      try {
        await this.readStream(onEvent, () => {
          failures = 0;
          onState(true);
        });
      } catch (error) {
        problem = error;
      }
      onState(false, problem);
      await sleep(RETRY_SECONDS[Math.min(failures, RETRY_SECONDS.length - 1)]);
    }
  }

  async readStream(onEvent, onOpen) {
    const aborter = new AbortController();
    const headers = this.headers();
    if (this.lastEventId) headers["Last-Event-ID"] = this.lastEventId;
    const answer = await fetch("v1/stream", { headers, signal: aborter.signal, cache: "no-store" });
    if (!answer.ok) throw this.refused(answer.status, await answer.json().catch(() => ({})));
    onOpen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const watchdog = setTimeout(() => aborter.abort(), SILENCE_SECONDS * 1000);
      const { value, done } = await reader.read().finally(() => clearTimeout(watchdog));
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) this.deliver(frame, onEvent);
    }
  }

  deliver(frame, onEvent) {
    const fields = { event: "message", data: "" };
    for (const line of frame.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
    }
    if (fields.id) this.lastEventId = fields.id;
    if (fields.data) onEvent(fields.event, JSON.parse(fields.data));
  }
}

/** The same answers out of a report's own document (/v1/report); nothing moves and nothing can be changed. */
export class Recording {
  constructor({ process, stats, history, slots, widths, map, events, tables, verdicts, modules, profile }) {
    this.isLive = false;
    this.tables = tables ?? [];
    this.canChange = false;
    this.answers = {
      "v1/processes": { processes: [process] },
      "v1/stats": { processes: [stats] },
      "v1/history": history,
      "v1/slots": { slots, time: stats.time },
      "v1/widths": widths,
      "v1/map": { map },
      "v1/events": { events },
      "v1/verdict": { verdicts: verdicts ?? [] },
      "v1/modules": modules ?? { tree: { name: "model", bytes: 0, children: [] }, modules: [], has_profile: false },
      "v1/profile": profile ?? undefined,
    };
  }

  async login() {}

  async get(path) {
    const answer = this.answers[path];
    if (answer === undefined) throw new Problem(404, `The report holds no ${path}`);
    return answer;
  }

  async follow(_onEvent, onState) {
    onState(true);
  }
}

/** What this page is about: a report carries its data in an element of its own. */
export function openSource() {
  const recording = document.getElementById("daf-recording");
  return recording ? new Recording(JSON.parse(recording.textContent)) : new Sidecar();
}

function withQuery(path, query) {
  const named = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  return named.length ? `${path}?${new URLSearchParams(named)}` : path;
}

function sleep(seconds) {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}
