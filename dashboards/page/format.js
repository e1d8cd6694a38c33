// Numbers as people read them, and back.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Three digits and a binary unit: 412 MiB, 1.50 GiB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let size = Math.abs(value),
    unit = 0;
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${value < 0 ? "−" : ""}${digits(size, unit)} ${UNITS[unit]}`;
}

function digits(size, unit) {
  if (unit === 0 || size >= 99.95) return size.toFixed(0);
  return size >= 9.995 ? size.toFixed(1) : size.toFixed(2);
}

/** The same without zeros that say nothing, for axes and for typing it again: 40 MiB, 1.5 GiB. */
export function briefBytes(value) {
  return bytes(value)
    .replace(/(\.\d*?)0+ /, "$1 ")
    .replace(". ", " ");
}

/** Whether `text` is a size as the sidecar takes it: 1.5GiB, 800 MB, 50%, or plain bytes. */
export function isSize(text) {
  return /^\s*(\d{1,18}(\.\d{0,6})?|\.\d{1,6})\s*(%|[kmgt]?i?b?)\s*$/i.test(text) && !/\d\s*i/i.test(text);
}

export function seconds(value) {
  if (!Number.isFinite(value) || value <= 0) return "–";
  if (value < 0.0995) return `${(value * 1e3).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return age(value);
}

/** How long, roughly: 45 s, 12 min, 3.4 h. */
export function age(value) {
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function count(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 10_000) return Math.round(value).toLocaleString("en");
  return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function times(value) {
  return value > 0 && Number.isFinite(value) ? `${value.toFixed(value < 9.95 ? 1 : 0)}×` : "–";
}

export function bits(value) {
  return Number.isFinite(value) ? value.toFixed(Number.isInteger(value) ? 0 : 1) : "–";
}

export function percent(value) {
  return Number.isFinite(value) ? `${(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0)}%` : "–";
}

/** Few significant digits for figures of no known scale, such as importance. */
export function plain(value) {
  if (!Number.isFinite(value)) return "–";
  return value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)
    ? value.toExponential(1)
    : String(+value.toPrecision(3));
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function clock(time) {
  return CLOCK.format(time * 1000);
}

/** An element with attributes, text and children: el("li", {class: "x"}, "text", child). */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Set text only where it changed: no layout, and no screen reader repeating itself. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The value of a CSS custom property, as the theme in force has it. */
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The font of labels on canvases, and its size in CSS pixels: they grow with the page's own text. */
export function labelFont() {
  const pixels = Math.round(0.8 * parseFloat(getComputedStyle(document.documentElement).fontSize));
  return { pixels, font: `${pixels}px ${themed("--font")}` };
}
