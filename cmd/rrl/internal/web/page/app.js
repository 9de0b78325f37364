// The page of "rrl serve": a list of limiters, and a card with charts for each that is chosen. What is chosen stands in the
// address, after the #, so that a link shows the same: names, each with an @ and a client where one is chosen.
//
// A limiter has two names here: name, by which requests and links call it, and text, which is shown: the same, with escapes
// for what a browser does not show or takes for a change of direction.

const length = 120_000; // ms shown
const listEvery = 5_000;
const longestGap = 3_000; // ms between two looks: what was free in a longer one is not known
const mostOpen = 24; // cards, as in events.go
const colours = ["#0d9488", "#6366f1", "#db2777", "#65a30d", "#0284c7", "#a855f7", "#ca8a04", "#475569"];
const java = "#ea7b24";
const at = (id) => document.getElementById(id);
const thousands = new Intl.NumberFormat("en").format;
const clock = (ms) => new Date(ms).toLocaleTimeString();
const moment = (ms) => (Date.now() - ms < 43_200_000 ? clock(ms) : new Date(ms).toLocaleString());

let chosen = []; // names, in the order of their cards
const cards = new Map(); // by name

function span(ms) {
  for (const [unit, size] of [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]]) {
    if (ms >= size) return `${Math.round((ms / size) * 10) / 10} ${unit}`;
  }
  return `${ms} ms`;
}

// grouped is a rate with its permits in groups of three digits.
const grouped = (rate) => rate.replace(/^\d+/, (permits) => thousands(permits));

// name shows a name, or another text of which the end tells as much as the beginning. The style leaves out its middle if it is
// too long for its place; the title has all of it.
function name(place, text) {
  if (place.title === text) return;
  place.title = text;
  place.dataset.end = [...text].slice(-12).join("");
  place.replaceChildren(Object.assign(document.createElement("span"), { textContent: text }));
  names.observe(place);
}

const names = new ResizeObserver((changes) => {
  for (const { target } of changes) target.classList.toggle("cut", target.firstChild.scrollWidth > target.clientWidth);
});

function element(kind, attributes = {}, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

// fetched is the answer to a request, or throws an error. If it is an error of Redis, it has the fields of the answer.
async function fetched(path, fields) {
  const answer = await fetch(path + "?" + new URLSearchParams(fields)), json = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(json.error), { answered: true }, json);
  return json;
}

// A card is one limiter: what has come of it, and how it is drawn.
class Card {
  constructor(name, client) {
    this.name = name;
    this.root = at("card").content.firstElementChild.cloneNode(true);
    this.root.querySelector(".close").addEventListener("click", () => choose(chosen.filter((n) => n !== name)));
    this.whose = this.root.querySelector(".whose select");
    this.whose.addEventListener("pointerenter", () => this.offer());
    this.whose.addEventListener("change", () => {
      this.whose.blur();
      this.forget(this.whose.value);
      choose(chosen);
      this.offer();
    });
    this.forget(client);
    for (const svg of this.root.querySelectorAll("svg")) {
      svg.addEventListener("pointermove", (e) => this.point(e));
      svg.addEventListener("pointerleave", () => this.point(null));
    }
  }

  // forget begins anew, with the permits of a client; "" is none.
  forget(client) {
    this.client = client;
    this.last = undefined;
    this.free = []; // [ms, permits]
    this.grants = new Map(); // second in ms -> permits by writer
    this.writers = []; // in the order in which they were seen, which gives each its colour
  }

  // offer lists the clients of a PER_CLIENT limiter, to choose one: not while one is being chosen.
  async offer() {
    const { clients, more } = await fetched("clients", { name: this.name }).catch(() => ({ clients: [], more: 0 }));
    if (document.activeElement === this.whose) return;
    const options = clients.map((one) => new Option(
      one.client === this.client ? one.text : `${one.text} – ${thousands(one.available)} free`, one.client,
    ));
    if (this.client && !clients.some((one) => one.client === this.client)) {
      options.unshift(new Option(this.last?.client_text ?? this.client, this.client));
    }
    if (!this.client) options.unshift(new Option(clients.length ? "choose a client" : "no client has used it lately", ""));
    if (more) options.push(Object.assign(new Option(`${thousands(more)} more: rrl show lists them`, ""), { disabled: true }));
    this.whose.replaceChildren(...options);
    this.whose.value = this.client;
  }

  take(event) {
    if (event.type === "PER_CLIENT" && this.last?.type !== "PER_CLIENT") {
      this.last = event;
      this.offer();
    }
    if (this.last?.away && !event.away) refresh();
    if (!this.last || !event.error) { // the event of an error has the time of the last look
      this.ahead = event.at + (event.away ? Date.now() - event.away : 0) - performance.now();
    }
    this.last = event;
    this.free.push(...event.free);
    for (const second of event.grants) {
      this.grants.set(second.at, second.by);
      for (const writer of Object.keys(second.by)) if (!this.writers.includes(writer)) this.writers.push(writer);
    }
    const before = event.at - length - 2000;
    while (this.free.length > 1 && this.free[1][0] < before) this.free.shift(); // one before the chart, for a gap at its edge
    for (const second of this.grants.keys()) if (second < before) this.grants.delete(second);
    this.describe();
  }

  describe() {
    const e = this.last, find = (what) => this.root.querySelector(what);
    const error = e.away ? "" : e.error; // while Redis is away the last figures stay, and status says so
    const unchosen = e.type === "PER_CLIENT" && !e.client, known = e.interval_ms > 0 && !error && !e.fault && !unchosen;
    this.root.classList.toggle("blank", unchosen || !e.interval_ms);
    this.root.classList.toggle("exhausted", known && e.available === 0);
    name(find(".name"), e.text);
    find(".rate").textContent = grouped(e.rate ?? "");
    const fixed = e.client && !this.client; // by rrl serve --client
    find(".whose").hidden = e.type !== "PER_CLIENT" || fixed;
    find(".available").textContent = known ? thousands(e.available) : "–";
    find(".of").textContent = known ? `of ${thousands(e.permits)} permits free` : "";
    find(".badge").hidden = !known || e.available > 0;
    const level = find(".level");
    level.style.width = known && e.permits ? `${(100 * e.available) / e.permits}%` : "0";
    level.classList.toggle("low", known && e.available < e.permits / 10);
    const facts = known ? { "in use": `${thousands(e.used)} in ${thousands(e.records)} ${e.records === 1 ? "record" : "records"}` } : {};
    if (e.ttl_ms) facts["gone in"] = span(e.ttl_ms);
    if (fixed) facts.client = e.client_text;
    find("dl").replaceChildren(...Object.entries(facts).map(([term, fact]) => {
      const div = document.createElement("div");
      div.append(Object.assign(document.createElement("dt"), { textContent: term }));
      div.append(Object.assign(document.createElement("dd"), { textContent: fact }));
      return div;
    }));
    const note = find(".note");
    note.textContent = error || e.fault || (unchosen ? "Each client has its own permits: choose one." : "") || (e.consistent === false ? "Free permits and records do not add up: see rrl show." : "") ||
      (e.partial ? "More is granted than can be read: grants are counted in part." : "");
    note.hidden = !note.textContent;
    note.classList.toggle("bad", Boolean(error || e.fault));
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
    return performance.now() + this.ahead;
  }

  // gaps are the times without a look, each with its begin and its end.
  gaps() {
    const looks = [...this.free.map(([ms]) => ms), this.now()];
    return looks.slice(1).map((ms, i) => [looks[i], ms]).filter(([from, to]) => to - from > longestGap);
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
    for (const [from, to] of this.gaps()) {
      const begin = Math.max(left, x(from));
      if (x(to) > begin) svg.append(element("rect", { class: "gap", x: begin, width: x(to) - begin, y: top, height: bottom - top }));
    }
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
    const points = this.free.filter(([ms]) => x(ms) >= left), gaps = new Map(this.gaps());
    let line = "", area = "", run = "", first;
    for (const [i, [ms, n]] of points.entries()) {
      if (!run) first = x(ms).toFixed(1);
      run += (run ? "V" : `M${first},`) + y(n).toFixed(1);
      if (!gaps.has(ms)) run += `H${x(points[i + 1]?.[0] ?? this.now()).toFixed(1)}`; // held until the next look
      if (!gaps.has(ms) && i < points.length - 1) continue;
      line += run;
      area += `${run}V${bottom}H${first}Z`;
      run = "";
    }
    svg.append(element("path", { class: "area", d: area }));
    svg.append(element("path", { class: "line", d: line }));
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
    const unseen = this.gaps().some(([from, to]) => from < this.pointed && this.pointed < to);
    const free = unseen ? undefined : this.free.findLast(([ms]) => ms <= this.pointed);
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

// choose shows the cards of these names, and no others.
function choose(names) {
  if (names.length > mostOpen) {
    at("more").textContent = `${mostOpen} cards are open: close one first.`;
    names = names.slice(0, mostOpen);
  }
  chosen = names;
  for (const [name, card] of cards) {
    if (!chosen.includes(name)) {
      card.root.remove();
      cards.delete(name);
    }
  }
  for (const name of chosen) {
    if (!cards.has(name)) cards.set(name, new Card(name, ""));
    at("cards").append(cards.get(name).root);
  }
  keep();
  mark();
  listen();
}

// links is what is chosen, as it stands in the address.
const links = () => chosen.map((name) => {
  const client = cards.get(name)?.client;
  return encodeURIComponent(name) + (client ? "@" + encodeURIComponent(client) : "");
}).join("&");

// keep writes what is chosen, and the order of the list, into the address.
function keep() {
  const sorted = at("sort").value === "use" ? "?sort=use" : "";
  history.replaceState(null, "", location.pathname + sorted + (chosen.length ? "#" + links() : ""));
}

// address reads it.
function address() {
  at("sort").value = new URLSearchParams(location.search).get("sort") === "use" ? "use" : "name";
  const parts = location.hash.slice(1).split("&").filter(Boolean);
  if (parts.join("&") === links()) return;
  const names = [];
  for (const [name, client = ""] of parts.map((part) => part.split("@").map(decodeURIComponent))) {
    if (!names.includes(name)) names.push(name);
    if (cards.get(name)?.client !== client) {
      cards.get(name)?.root.remove();
      cards.set(name, new Card(name, client));
    }
  }
  choose(names);
}

let source, again;

// listen has what happens on the limiters that are chosen sent here. After a break the browser asks again by itself, unless
// the answer was an error, and all that is known comes again.
function listen() {
  source?.close();
  clearTimeout(again);
  source = undefined;
  if (!chosen.length) return status();
  source = new EventSource("events?" + new URLSearchParams(chosen.flatMap((name) => [["name", name], ["client", cards.get(name).client]])));
  source.addEventListener("open", () => {
    for (const card of cards.values()) card.free = [];
    lost = 0;
    status();
  });
  source.addEventListener("error", () => {
    lost ||= Date.now();
    status();
    if (source?.readyState === EventSource.CLOSED) again = setTimeout(listen, listEvery);
  });
  source.addEventListener("message", (message) => {
    const event = JSON.parse(message.data);
    cards.get(event.name)?.take(event);
    status();
  });
}

let lost = 0; // since when there is no connection to rrl serve, in ms; 0: there is one
let away = 0; // since when the list could not be read because Redis is away; 0: it could
let cause = ""; // why Redis is away

// status shows whether the figures are live, and else since when they are not, and why.
function status() {
  const gone = [...cards.values()].map((card) => card.last).find((last) => last?.away) ?? { away, error: cause };
  const text = lost ? `no connection to rrl serve since ${moment(lost)}` :
    gone.away ? `Redis away since ${moment(gone.away)}: ${gone.error}` : "live";
  at("live").className = lost || gone.away ? "off" : "on";
  if (at("live").textContent !== text) at("live").textContent = text; // a screen reader reads each change
  age(at("limiters"), lost || gone.away);
  for (const card of cards.values()) age(card.root, lost || card.last?.away);
}

// age dims what is shown of old, and says since when it is; 0 is never.
function age(part, since) {
  part.classList.toggle("stale", Boolean(since));
  part.querySelector(".since").textContent = since ? `no data since ${moment(since)}` : "";
}

function mark() {
  for (const button of at("list").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(chosen.includes(button.dataset.name)));
  }
}

let limiters = []; // in the list, by name
let asked = 0; // number of requests for the list
let first = true;

let shown = 0; // the request whose answer is shown
let pending = 0; // requests without an answer

// refresh reads the list. Its answer is dropped if that of a later request is shown.
async function refresh() {
  const number = ++asked;
  pending++;
  try {
    const answer = await fetched("limiters", { search: at("search").value });
    if (number < shown) return;
    shown = number;
    if (!source) lost = 0;
    away = 0;
    limiters = answer.limiters;
    name(at("where"), answer.where);
    at("more").textContent = answer.more ? `${thousands(answer.more)} more: search for them` : counted(limiters.length);
    list();
    if (first && !location.hash && limiters.length <= 4) choose(limiters.map((limiter) => limiter.name));
    first = false;
  } catch (error) {
    if (number < shown) return;
    shown = number;
    if (error.answered) {
      away = error.away ?? 0;
      cause = error.message;
      name(at("where"), error.where);
      if (!away) at("more").textContent = cause;
    } else {
      lost ||= Date.now();
    }
  } finally {
    pending--;
  }
  status();
}

// counted says how many limiters are in the list, which may show a part of them.
function counted(n) {
  if (n) return n === 1 ? "1 limiter" : `${thousands(n)} limiters`;
  return at("search").value ? "No name matches." : "No limiters.";
}

// use is the part of its permits that is in use; of a limiter whose use is not known it is less than that of any other.
const use = (limiter) => (limiter.permits ? 1 - limiter.available / limiter.permits : -1);

// list draws the list.
function list() {
  const sorted = at("sort").value === "use" ? limiters.toSorted((a, b) => use(b) - use(a)) : limiters;
  const focused = document.activeElement?.dataset.name;
  at("list").replaceChildren(...sorted.map((limiter) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const exhausted = limiter.permits > 0 && limiter.available === 0;
    button.dataset.name = limiter.name;
    button.title = limiter.text;
    button.classList.toggle("exhausted", exhausted);
    const called = Object.assign(document.createElement("span"), { className: "name" });
    name(called, limiter.text);
    const rate = Object.assign(document.createElement("span"), { className: "rate", textContent: limiter.rate ? grouped(limiter.rate) : limiter.fault });
    if (exhausted) rate.append(Object.assign(document.createElement("span"), { className: "badge", textContent: "exhausted" }));
    const meter = document.createElement("div"), level = document.createElement("div");
    meter.className = "meter";
    level.className = "level";
    if (limiter.permits) {
      level.style.width = `${(100 * limiter.available) / limiter.permits}%`;
      level.classList.toggle("low", limiter.available < limiter.permits / 10);
    }
    meter.append(level);
    button.append(called, rate, meter);
    button.addEventListener("click", () => {
      choose(chosen.includes(limiter.name) ? chosen.filter((n) => n !== limiter.name) : [...chosen, limiter.name]);
    });
    item.append(button);
    return item;
  }));
  [...at("list").querySelectorAll("button")].find((button) => button.dataset.name === focused)?.focus({ preventScroll: true });
  mark();
}

function frame() {
  for (const card of cards.values()) card.draw();
  setTimeout(() => requestAnimationFrame(frame), 200);
}

at("search").addEventListener("input", refresh);
at("sort").addEventListener("change", () => { keep(); list(); });
addEventListener("hashchange", address);
address();
refresh();
setInterval(() => pending || refresh(), listEvery);
frame();
