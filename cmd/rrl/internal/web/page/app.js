// The page of "rrl serve": a list of limiters, and a card with charts for each that is chosen. What is chosen stands in the
// address, after the #, so that a link shows the same.

const length = 120_000; // ms shown
const listEvery = 5_000;
const colours = ["#0d9488", "#6366f1", "#db2777", "#65a30d", "#0284c7", "#a855f7", "#ca8a04", "#475569"];
const java = "#ea7b24";
const at = (id) => document.getElementById(id);
const thousands = new Intl.NumberFormat("en").format;
const clock = (ms) => new Date(ms).toLocaleTimeString();

let chosen = [];
const cards = new Map(); // by name

function span(ms) {
  for (const [unit, size] of [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]]) {
    if (ms >= size) return `${Math.round((ms / size) * 10) / 10} ${unit}`;
  }
  return `${ms} ms`;
}

function element(kind, attributes = {}, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

// A card is one limiter: what has come of it, and how it is drawn.
class Card {
  constructor(name) {
    this.name = name;
    this.free = []; // [ms, permits]
    this.grants = new Map(); // second in ms -> permits by writer
    this.writers = []; // in the order in which they were seen, which gives each its colour
    this.root = at("card").content.firstElementChild.cloneNode(true);
    this.root.querySelector(".name").textContent = name;
    this.root.querySelector(".close").addEventListener("click", () => choose(chosen.filter((n) => n !== name)));
    for (const svg of this.root.querySelectorAll("svg")) {
      svg.addEventListener("pointermove", (e) => this.point(e));
      svg.addEventListener("pointerleave", () => this.point(null));
    }
  }

  take(event) {
    this.last = event;
    this.came = performance.now();
    this.free.push(...event.free);
    for (const second of event.grants) {
      this.grants.set(second.at, second.by);
      for (const writer of Object.keys(second.by)) if (!this.writers.includes(writer)) this.writers.push(writer);
    }
    const before = event.at - length - 2000;
    while (this.free.length && this.free[0][0] < before) this.free.shift();
    for (const second of this.grants.keys()) if (second < before) this.grants.delete(second);
    this.describe();
  }

  describe() {
    const e = this.last, find = (what) => this.root.querySelector(what);
    const known = e.permits > 0 && !e.error && !e.fault;
    find(".rate").textContent = e.rate ? e.rate + (e.type === "PER_CLIENT" ? " per client" : "") : "";
    find(".available").textContent = known ? thousands(e.available) : "–";
    find(".of").textContent = known ? `of ${thousands(e.permits)} permits free` : "";
    const level = find(".level");
    level.style.width = known ? `${(100 * e.available) / e.permits}%` : "0";
    level.classList.toggle("low", known && e.available < e.permits / 10);
    const facts = known ? { "in use": `${thousands(e.used)} in ${thousands(e.records)} records` } : {};
    if (e.ttl_ms) facts["gone in"] = span(e.ttl_ms);
    if (e.client) facts.client = e.client;
    find("dl").replaceChildren(...Object.entries(facts).map(([term, fact]) => {
      const div = document.createElement("div");
      div.append(Object.assign(document.createElement("dt"), { textContent: term }));
      div.append(Object.assign(document.createElement("dd"), { textContent: fact }));
      return div;
    }));
    const note = find(".note");
    note.textContent = e.error || e.fault || (e.consistent ? "" : "Free permits and records do not add up: see rrl show.") ||
      (e.partial ? "More is granted than can be read: grants are counted in part." : "");
    note.hidden = !note.textContent;
    note.classList.toggle("bad", Boolean(e.error || e.fault));
    const sums = new Map(this.writers.map((w) => [w, 0]));
    for (const by of this.grants.values()) for (const [w, n] of Object.entries(by)) sums.set(w, sums.get(w) + n);
    find(".legend").replaceChildren(...[...sums].filter(([, n]) => n > 0).map(([w, n]) => {
      const item = document.createElement("span"), dot = document.createElement("i");
      dot.style.background = this.colour(w);
      item.append(dot, `${this.title(w)} ${thousands(n)}`);
      return item;
    }));
  }

  colour(writer) {
    return writer === "java" ? java : colours[this.writers.filter((w) => w !== "java").indexOf(writer) % colours.length];
  }

  title(writer) {
    return writer === "java" ? "Java or unknown" : `Go ${writer}`;
  }

  // now is the time on the server, which goes on between two looks.
  now() {
    return this.last.at + Math.min(performance.now() - this.came, 3000);
  }

  draw() {
    if (!this.last) return;
    this.drawFree(this.root.querySelector(".free"));
    this.drawGrants(this.root.querySelector(".grants"));
  }

  // scale readies a chart, and answers where a time and a figure lie on it.
  scale(svg, highest) {
    const width = svg.clientWidth || 400, height = svg.clientHeight || 110, bottom = height - 16, left = 0, top = 8;
    svg.replaceChildren();
    const now = this.now();
    const x = (ms) => left + (width - left) * (1 - (now - ms) / length);
    const y = (n) => bottom - (bottom - top) * Math.min(1, n / highest);
    for (const part of [0, 0.5, 1]) {
      const line = y(part * highest);
      svg.append(element("line", { class: "grid", x1: left, x2: width, y1: line, y2: line }));
      if (part === 1) svg.append(element("text", { x: left + 2, y: line - 3 }, thousands(Math.round(part * highest * 10) / 10)));
    }
    for (const ago of [90, 60, 30]) {
      svg.append(element("text", { x: x(now - ago * 1000), y: height - 3, "text-anchor": "middle" }, `${ago} s ago`));
    }
    svg.append(element("text", { x: width, y: height - 3, "text-anchor": "end" }, "now"));
    return { x, y, bottom, left, width, height, top };
  }

  drawFree(svg) {
    const { x, y, bottom, left, top } = this.scale(svg, Math.max(1, this.last.permits));
    const points = this.free.filter(([ms]) => x(ms) >= left);
    if (!points.length) return;
    let path = `M${x(points[0][0])},${y(points[0][1])}`;
    for (const [ms, n] of points.slice(1)) path += `H${x(ms).toFixed(1)}V${y(n).toFixed(1)}`; // held until the next look
    path += `H${x(this.now()).toFixed(1)}`;
    svg.append(element("path", { class: "area", d: `${path}V${bottom}H${x(points[0][0])}Z` }));
    svg.append(element("path", { class: "line", d: path }));
    this.cursor(svg, x, top, bottom);
  }

  drawGrants(svg) {
    const sums = [...this.grants.values()].map((by) => Object.values(by).reduce((a, b) => a + b, 0));
    const highest = nice(Math.max(1, ...sums));
    const { x, y, bottom, left, width, top } = this.scale(svg, highest);
    const wide = Math.max(1, (width / length) * 1000 - 1);
    for (const [second, by] of this.grants) {
      let below = 0;
      if (x(second) + wide < left) continue;
      for (const writer of this.writers) {
        const n = by[writer];
        if (!n) continue;
        svg.append(element("rect", {
          x: Math.max(left, x(second)), width: wide, y: y(below + n), height: Math.max(0.5, y(below) - y(below + n)), rx: 1,
          fill: this.colour(writer),
        }));
        below += n;
      }
    }
    this.cursor(svg, x, top, bottom);
  }

  cursor(svg, x, top, bottom) {
    if (!this.pointed) return;
    const here = x(this.pointed);
    svg.append(element("line", { class: "cursor", x1: here, x2: here, y1: top, y2: bottom }));
  }

  // point shows the figures of the moment under the pointer.
  point(e) {
    const tip = this.root.querySelector(".tip");
    if (!e || !this.last) {
      this.pointed = 0;
      tip.hidden = true;
      return this.draw();
    }
    const box = e.currentTarget.getBoundingClientRect(), card = this.root.getBoundingClientRect();
    this.pointed = this.now() - length * (1 - (e.clientX - box.left) / box.width);
    const second = Math.floor(this.pointed / 1000) * 1000;
    const free = this.free.findLast(([ms]) => ms <= this.pointed);
    const lines = [clock(this.pointed), free ? `${thousands(free[1])} free` : "not seen"];
    for (const [writer, n] of Object.entries(this.grants.get(second) ?? {})) {
      lines.push(`${thousands(n)} granted to ${this.title(writer)}`);
    }
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.min(e.clientX - card.left + 12, card.width - tip.offsetWidth - 8)}px`;
    tip.style.top = `${e.clientY - card.top + 14}px`;
    this.draw();
  }
}

// nice is the next round figure.
function nice(n) {
  const size = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 2.5, 5, 10].map((f) => f * size).find((f) => f >= n);
}

let source;

function choose(names) {
  chosen = names;
  history.replaceState(null, "", names.length ? "#" + names.map(encodeURIComponent).join("&") : location.pathname);
  for (const [name, card] of cards) {
    if (!chosen.includes(name)) {
      card.root.remove();
      cards.delete(name);
    }
  }
  for (const name of chosen) {
    if (!cards.has(name)) cards.set(name, new Card(name));
    at("cards").append(cards.get(name).root);
  }
  mark();
  listen();
}

// listen has what happens on the limiters that are chosen sent here. After a break the browser asks again by itself, and all
// that is known comes again.
function listen() {
  source?.close();
  source = undefined;
  if (!chosen.length) return status("", "");
  source = new EventSource("events?" + new URLSearchParams(chosen.map((name) => ["name", name])));
  source.addEventListener("open", () => {
    for (const card of cards.values()) card.free = [];
    status("on", "live");
  });
  source.addEventListener("error", () => status("off", "no connection to rrl serve"));
  source.addEventListener("message", (message) => {
    const event = JSON.parse(message.data);
    cards.get(event.name)?.take(event);
  });
}

function status(kind, text) {
  at("live").className = kind;
  at("live").textContent = text;
}

function mark() {
  for (const button of at("list").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(chosen.includes(button.dataset.name)));
  }
}

async function list() {
  const answer = await fetch("limiters?" + new URLSearchParams({ search: at("search").value }));
  if (!answer.ok) {
    at("more").textContent = await answer.text();
    return;
  }
  const { where, limiters, more } = await answer.json();
  at("where").textContent = where;
  at("more").textContent = more ? `${thousands(more)} more: search for them` : limiters.length ? "" : "No limiters.";
  at("list").replaceChildren(...limiters.map((limiter) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.dataset.name = limiter.name;
    button.title = limiter.name;
    const name = Object.assign(document.createElement("span"), { className: "name", textContent: limiter.name });
    const rate = Object.assign(document.createElement("span"), { className: "rate", textContent: limiter.rate ?? limiter.fault });
    const meter = document.createElement("div"), level = document.createElement("div");
    meter.className = "meter";
    level.className = "level";
    if (limiter.permits) {
      level.style.width = `${(100 * limiter.available) / limiter.permits}%`;
      level.classList.toggle("low", limiter.available < limiter.permits / 10);
    }
    meter.append(level);
    button.append(name, rate, meter);
    button.addEventListener("click", () => {
      choose(chosen.includes(limiter.name) ? chosen.filter((n) => n !== limiter.name) : [...chosen, limiter.name]);
    });
    item.append(button);
    return item;
  }));
  mark();
  if (!chosen.length && !location.hash && limiters.length && limiters.length <= 4) choose(limiters.map((l) => l.name));
}

function address() {
  const names = location.hash.slice(1).split("&").filter(Boolean).map(decodeURIComponent);
  if (names.join() !== chosen.join()) choose(names);
}

function frame() {
  for (const card of cards.values()) card.draw();
  setTimeout(() => requestAnimationFrame(frame), 200);
}

const refresh = () => list().catch((error) => status("off", String(error)));
at("search").addEventListener("input", refresh);
addEventListener("hashchange", address);
address();
refresh();
setInterval(refresh, listEvery);
frame();
