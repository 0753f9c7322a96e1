"use strict";
// The dashboard. It shows what /api/v1 returns, and asks for the view that is open every two seconds. All text comes
// into the page as text nodes, never as markup.

const INTERVAL_MS = 2000;
const ACTIONS = {
  "drain": ["Drain", "Drain %? It takes no new entries, and its ledgers are copied to others."],
  "cancel-drain": ["Stop draining", "End the draining of %? Copies that were moved stay where they are."],
  "gc": ["Collect", "Start a run of garbage collection on %?"],
  "scrub": ["Scrub", "Start a round of the scrub on %?"],
  "recover": ["Recover", "Close ledger % where it ends? Its writer, if there is one, is fenced."],
};
const VIEWS = { overview: "Overview", bookies: "Bookies", ledgers: "Ledgers", logs: "Logs", healing: "Healing", events: "Events" };
const DANGEROUS = ["drain", "recover"];

const main = document.getElementById("main");
const dialog = document.getElementById("dialog");
let overview = null;
let shown = null;       // the hash of what is on the page
let asking = null;      // the request of the open view, cut off by the next one
let token = "";
let pressed = false;    // a button of the mouse is down: what is under it must not be replaced

// --- the page ----------------------------------------------------------------------------------------------------

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

const card = (title, ...children) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...children);

function numbers(pairs) {
  return h("dl", { class: "numbers" }, pairs.map(([name, value, kind]) =>
    h("div", {}, h("dt", {}, name), h("dd", { class: kind || null }, value))));
}

function table(columns, rows, caption) {
  const plain = columns.map((column) => column.replace(/^#/, ""));
  const number = (i) => columns[i].startsWith("#") ? "number" : null;
  const cells = (row) => row.map((cell, i) => {
    const text = cell === null ? "–" : cell;
    return h("td", { "data-name": plain[i], class: [number(i), text === "–" && "empty"].filter(Boolean).join(" ") || null }, h("div", {}, text));
  });
  return h("div", { class: "scroll" }, h("table", { class: "cards", "aria-label": caption },
    h("thead", {}, h("tr", {}, plain.map((column, i) => h("th", { scope: "col", class: number(i) }, column)))),
    h("tbody", {}, rows.length ? rows.map((row) => h("tr", {}, cells(row)))
      : h("tr", {}, h("td", { colspan: columns.length, class: "dim" }, "none")))));
}

// --- text --------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const none = (n) => n === null || n === undefined;
const count = (n) => none(n) ? "–" : whole.format(n);
function bytes(n) {
  if (none(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}
const ms = (n) => none(n) ? "–" : `${n >= 10 ? Math.round(n) : n.toFixed(1)} ms`;
function span(s) {
  if (none(s)) return "unknown";
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
}
const day = (t) => new Date(t).toISOString().replace("T", " ").slice(0, 19);
const KIND = { healthy: "good", warning: "warn", risk: "bad", note: "dim", unknown: "bad", writable: "good", "read-only": "warn",
  draining: "warn", limbo: "warn", absent: "bad", OPEN: "good", IN_RECOVERY: "warn", CLOSED: "dim", unreadable: "bad" };
const state = (text) => h("span", { class: KIND[text] || "dim" }, text);

function plot(title, values, show) {
  const known = values.filter((v) => !none(v));
  const most = Math.max(1e-9, ...known);
  const width = 300, height = 90, step = width / Math.max(1, values.length - 1);
  const points = values.map((v, i) => none(v) ? "" : `${(i * step).toFixed(1)},${(height - 4 - v / most * (height - 12)).toFixed(1)}`);
  const last = known.length ? known[known.length - 1] : null, top = known.length ? most : null;
  const picture = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: now ${show(last)}, at most ${show(top)} in the last five minutes` },
  svg("line", { x1: 0, y1: height - 4, x2: width, y2: height - 4 }), svg("polyline", { points: points.filter((p) => p).join(" ") }));
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title),
    h("div", { class: "now" }, show(last), h("span", { class: "dim" }, ` at most ${show(top)}`)), picture);
}

// --- asking ------------------------------------------------------------------------------------------------------

async function ask(path, signal) {
  const response = await fetch(`/api/v1${path}`, { signal });
  const answer = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function complain(text) {
  const place = document.getElementById("error");
  place.hidden = !text;
  if (place.textContent !== text) place.textContent = text;
}

function head() {
  const place = document.getElementById("status");
  const text = overview.health.status;
  if (place.textContent !== text) { place.textContent = text; place.className = `pill ${KIND[text] || "dim"}`; }
  document.title = text === "healthy" ? "bkpy" : `${text} – bkpy`;
  complain(overview.error ? `The cluster can't be seen: ${overview.error}` + (overview.looked ? ` (last seen ${day(overview.looked * 1000)} UTC)` : "") : "");
}

// --- actions -----------------------------------------------------------------------------------------------------

function actions(names, subject) {
  return names.filter((name) => overview.actions.includes(name)).map((name) =>
    h("button", { type: "button", class: DANGEROUS.includes(name) ? "danger" : null, "aria-label": `${ACTIONS[name][0]} ${subject}`,
      onclick: () => confirm(name, subject) }, ACTIONS[name][0]));
}

function confirm(name, subject) {
  const field = h("input", { type: "password", id: "token", autocomplete: "off" });
  field.value = token;
  const result = h("p", { class: "bad", role: "alert" });
  const go = h("button", { type: "submit", class: "danger" }, ACTIONS[name][0]);
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      token = field.value;
      const response = await fetch(`/api/v1/actions/${name}`, { method: "POST", body: JSON.stringify({ subject: String(subject) }),
        headers: { "Content-Type": "application/json", "Authorization": `Bearer ${token}` } });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error);
      dialog.close();
      refresh();
    } catch (error) { result.textContent = error.message; }
    go.disabled = false;
  } }, h("label", { for: "token" }, "Token ", field), h("div", { class: "row" }, go,
    h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")), result);
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, ACTIONS[name][1].replace("%", subject)), form);
  dialog.showModal();
  field.focus();
}

// --- views: each returns what is on the page -----------------------------------------------------------------------

function findings(list) {
  if (!list.length) return h("p", { class: "good" }, "All is well.");
  return h("ul", { class: "plain" }, list.map((f) => h("li", {}, state(f.severity), " ", f.subject ? h("b", {}, f.subject, ": ") : null,
    f.message, h("div", { class: "dim" }, "see ", f.help))));
}

async function viewOverview(signal) {
  const [{ bookies }, busiest] = await Promise.all([ask("/bookies", signal), ask("/busiest", signal)]);
  const rates = overview.rates, health = overview.health;
  const writable = bookies.filter((b) => b.state === "writable").length;
  return [
    card("Cluster", numbers([
      ["status", health.status, KIND[health.status]],
      ["bookies that take entries", `${writable} of ${bookies.length}`, writable === bookies.length ? null : "warn"],
      ["ledgers that miss copies", count(health.ledgers_missing_copies), health.ledgers_missing_copies ? "warn" : null],
    ]), h("h3", {}, "What isn't well"), health.status === "unknown" ? h("p", { class: "bad" }, "Nobody can tell.") : findings(health.findings)),
    h("div", { class: "plots" },
      plot("Copies of entries stored a second", rates.map((r) => r.entries_stored), count),
      plot("Bytes stored a second", rates.map((r) => r.bytes_stored), bytes),
      plot("Bytes read a second", rates.map((r) => r.bytes_read), bytes),
      plot("p99 of storing, at the bookies", rates.map((r) => r.add_p99_ms), ms)),
    card("Busiest ledgers", table(["ledger", "log", "#entries a second", "#bytes a second", "bookies"], busiest.ledgers.slice(0, 10).map((l) => [
      h("a", { href: `#ledgers/${l.ledger_id}` }, l.ledger_id), l.log ? logLink(l.log) : "–", count(l.entries), bytes(l.bytes), l.bookies.join(", ")]), "Busiest ledgers")),
    card("Busiest logs", table(["log", "#entries a second", "#bytes a second"], busiest.logs.slice(0, 10).map((l) => [
      logLink(l.log), count(l.entries), bytes(l.bytes)]), "Busiest logs")),
  ];
}

const logLink = (name) => h("a", { href: `#logs/${encodeURIComponent(name)}` }, name);

async function viewBookies(signal) {
  const { bookies } = await ask("/bookies", signal);
  const rows = bookies.map((b) => [
    h("b", {}, b.bookie_id), [state(b.state), b.why ? h("div", { class: "dim" }, b.why) : null], b.rack || "–",
    b.state === "absent" ? "–" : bytes(b.free_bytes), b.seen ? count(b.entries_stored) : "–", b.seen ? bytes(b.bytes_stored) : "–",
    b.seen ? bytes(b.bytes_read) : "–", ms(b.add_p99_ms), b.seen ? `${bytes(b.memory_bytes)} of ${bytes(b.memory_bytes_max)}` : "–",
    b.damages ? h("span", { class: "bad" }, `${b.damages} damages`) : b.seen ? b.doing.join(", ") || "–" : h("span", { class: "dim" }, "not seen"),
    h("span", { class: "dim" }, b.version || "–"),
    overview.actions.length && b.state !== "absent" ? h("span", {}, actions(b.state === "draining" ? ["cancel-drain", "gc", "scrub"] : ["drain", "gc", "scrub"], b.bookie_id)) : "–",
  ]);
  const columns = ["bookie", "state", "rack", "#space left", "#copies a second", "#stored", "#read", "#p99", "memory", "doing", "version", "actions"];
  return [card("Bookies", overview.actions.length ? table(columns, rows, "Bookies") : table(columns.slice(0, -1), rows.map((r) => r.slice(0, -1)), "Bookies"))];
}

async function viewLedgers(signal, parts, query) {
  if (parts.length) return ledger(signal, parts[0]);
  const page = await ask(`/ledgers?${new URLSearchParams(query)}`, signal);
  const rows = page.ledgers.map((l) => [
    h("a", { href: `#ledgers/${l.ledger_id}` }, l.ledger_id), state(l.state), count(l.last_entry), bytes(l.length), l.quorums,
    l.created.replace("T", " ").slice(0, 19), count(l.fragments), l.log ? logLink(l.log) : "–",
    l.missing.length ? h("span", { class: "bad" }, `on ${l.missing.join(", ")}`) : "–",
  ]);
  const more = none(page.after) ? null : `#ledgers?${new URLSearchParams({ ...query, after: page.after })}`;
  return [card("Ledgers", search(query), table(["#ledger", "state", "#last entry", "#bytes", "E,Qw,Qa", "created (UTC)", "#fragments", "log", "missing copies"], rows, "Ledgers"),
    h("div", { class: "row" }, query.after ? h("a", { href: "#ledgers" }, "From the beginning") : null, more ? h("a", { href: more, id: "more" }, "Next page") : null,
      h("span", { class: "dim" }, `${count(page.examined)} looked at`)))];
}

function search(query) {
  const id = h("input", { id: "search", inputmode: "numeric", placeholder: "id", size: 12, "aria-label": "Ledger id" });
  const log = h("input", { placeholder: "log", size: 12, "aria-label": "Log" });
  log.value = query.log || "";
  const states = h("select", { "aria-label": "State" }, ["", "OPEN", "IN_RECOVERY", "CLOSED"].map((s) =>
    h("option", { value: s, selected: (query.state || "") === s }, s || "any state")));
  const missing = h("input", { type: "checkbox", checked: query.missing === "true" });
  return h("form", { role: "search", onsubmit: (event) => {
    event.preventDefault();
    document.activeElement.blur();
    if (/^\d+$/.test(id.value.trim())) { location.hash = `#ledgers/${id.value.trim()}`; return; }
    const wanted = { state: states.value, log: log.value.trim(), missing: missing.checked ? "true" : "" };
    location.hash = `#ledgers?${new URLSearchParams(Object.entries(wanted).filter(([, v]) => v))}`;
  } }, id, states, log, h("label", {}, missing, "misses copies"), h("button", { type: "submit" }, "Find"));
}

async function ledger(signal, id) {
  const [found, { bookies }] = await Promise.all([ask(`/ledgers/${encodeURIComponent(id)}`, signal), ask("/bookies", signal)]);
  const here = new Set(bookies.filter((b) => b.state !== "absent").map((b) => b.bookie_id));
  const one = found.ledger;
  const strips = one.fragments.map((f) => h("div", { class: "strip" },
    h("span", { class: "dim" }, `${count(f.first_entry)} – ${none(f.last_entry) ? "…" : count(f.last_entry)}`),
    h("div", { class: "bookies" }, f.bookies.map((b) => b in found.missing
      ? h("span", { class: "copy missing", title: `misses copies: ${found.missing[b]}` }, b, " misses copies")
      : here.has(b) ? h("span", { class: "copy" }, b) : h("span", { class: "copy absent" }, b, " is absent")))));
  const custom = Object.entries(one.custom_metadata);
  return [card(`Ledger ${one.ledger_id}`, numbers([
    ["state", one.state, KIND[one.state]], ["last entry", count(one.last_entry)], ["bytes", bytes(one.length)],
    ["E, Qw, Qa", `${one.ensemble_size}, ${one.write_quorum}, ${one.ack_quorum}`], ["created (UTC)", one.created.replace("T", " ").slice(0, 19)],
  ]), h("h3", {}, "Fragments and their bookies"), h("div", { class: "strips" }, strips),
  custom.length ? [h("h3", {}, "Custom metadata"), table(["name", "value"], custom, "Custom metadata")] : null,
  h("div", { class: "row" }, h("a", { href: "#ledgers" }, "All ledgers"), found.unclosed ? actions(["recover"], one.ledger_id) : null))];
}

async function viewLogs(signal, parts, query) {
  if (parts.length) return log(signal, decodeURIComponent(parts[0]));
  const page = await ask(`/logs?${new URLSearchParams(query)}`, signal);
  const rows = page.logs.map((l) => [logLink(l.log), count(l.first_position), count(l.known_end), count(l.ledgers), bytes(l.bytes),
    count(l.appended_entries), bytes(l.appended_bytes), count(l.consumers), h("span", { class: l.lag ? "warn" : null }, count(l.lag)), none(l.known_end) ? h("span", { class: "bad" }, "unreadable") : l.writer || "nobody"]);
  return [card("Named logs", table(["log", "#first position", "#known end", "#ledgers", "#bytes", "#entries a second", "#bytes a second", "#consumers", "#entries behind", "writer"], rows, "Named logs"),
    none(page.after) ? null : h("div", { class: "row" }, h("a", { href: `#logs?${new URLSearchParams({ after: page.after })}` }, "Next page")))];
}

async function log(signal, name) {
  const one = await ask(`/logs/${encodeURIComponent(name)}`, signal);
  const rows = [...one.segments].reverse().slice(0, 20).map((s) => [h("a", { href: `#ledgers/${s.ledger_id}` }, s.ledger_id), count(s.first_position),
    none(s.entries) ? h("span", { class: "good" }, "being written") : count(s.entries), bytes(s.bytes), day(s.begun_ms)]);
  return [card(`Log ${one.log}`, numbers([
    ["first position", count(one.first_position)], ["known end", count(one.known_end)], ["writer", one.writer || "nobody"],
    ["kept for", none(one.retention_s) ? "ever" : span(one.retention_s)], ["kept bytes", none(one.retention_bytes) ? "all" : bytes(one.retention_bytes)],
  ]), h("h3", {}, "Segments over time"), timeline(one.segments), table(["#ledger", "#first position", "#entries", "#bytes", "begun (UTC)"], rows, "Segments"),
  one.segments.some((s) => none(s.entries)) ? h("p", { class: "dim" }, "The known end is that of the last sealed segment.") : null, older(one)),
  card("Consumers", table(["consumer", "#position", "#entries behind", "since (UTC)"], one.consumers.map((c) => [c.consumer, count(c.position),
    h("span", { class: c.lag ? "warn" : "good" }, count(c.lag)), day(c.since_ms)]), "Consumers"),
  h("div", { class: "row" }, h("a", { href: "#logs" }, "All logs")))];
}

function older(one) {
  const rest = one.segments_before + Math.max(0, one.segments.length - 20);
  return rest ? h("p", { class: "dim" }, `and ${count(rest)} older ones`) : null;
}

function timeline(segments) {
  if (!segments.length) return h("p", { class: "dim" }, "The log has no segments.");
  const begin = segments[0].begun_ms, end = Math.max(Date.now(), segments[segments.length - 1].begun_ms + 1), width = 1000;
  const at = (t) => (t - begin) / Math.max(1, end - begin) * width;
  return svg("svg", { class: "line", viewBox: `0 0 ${width} 44`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${segments.length} segments since ${day(begin)}` }, ...segments.map((s, i) => {
    const until = none(s.last_ms) ? end : i + 1 < segments.length ? segments[i + 1].begun_ms : s.last_ms;
    return svg("rect", { x: at(s.begun_ms), y: 4, width: Math.max(2, at(until) - at(s.begun_ms)), height: 36, class: none(s.entries) ? "open" : "sealed" });
  }));
}

async function viewHealing(signal) {
  const { replication: r } = await ask("/healing", signal);
  if (!("enabled" in r)) return [card("Healing", h("p", { class: "dim" }, "The cluster has not been seen yet."))];
  const left = Object.entries(r.ledgers_by_copies_left);
  const link = (id) => h("a", { href: `#ledgers/${id}` }, id);
  return [card("Healing", numbers([
    ["re-replication", r.enabled ? "on" : "off", r.enabled ? "good" : "warn"], ["auditor", r.auditor ? r.auditor.name : "nobody", r.auditor ? null : "warn"],
    ["ledgers that miss copies", count(r.ledgers), r.ledgers ? "warn" : "good"], ["to copy", bytes(r.bytes_left)],
    ["a second", bytes(r.bytes_per_s)], ["whole in about", r.ledgers ? span(r.eta_s) : "–"], ["stuck", count(r.stuck), r.stuck ? "bad" : null],
  ]), left.length ? [h("h3", {}, "By copies left"), table(["#copies left", "#ledgers"], left.map(([n, c]) => [n, count(c)]), "Ledgers by copies left")] : null),
  card("Absent bookies", table(["bookie", "#absent for", "state"], Object.entries(r.absent).map(([b, a]) => [b, span(a.absent_s),
    a.worked_off ? "lost, re-replicated" : a.lost ? "lost" : a.replaced ? "back without its data" : "absent, not lost yet"]), "Absent bookies")),
  card("In work", table(["#ledger", "worker", "#for"], r.working.slice(0, 100).map((w) => [link(w.ledger_id), w.holder, span(w.for_s)]), "Ledgers in work")),
  card("Stuck", table(["#ledger", "because"], Object.entries(r.stuck_ledgers).slice(0, 100).map(([id, why]) => [link(id), why]), "Stuck ledgers"))];
}

async function viewEvents(signal) {
  const { events } = await ask("/events", signal);
  return [card("Events", h("p", { class: "dim" }, "What this dashboard has seen change since it was started, the newest first. Times are UTC."),
    h("ul", { class: "plain" }, events.map((e) => h("li", {}, h("span", { class: "dim" }, day(e.time * 1000), " ", e.kind, " "), e.text))))];
}

const DRAW = { overview: viewOverview, bookies: viewBookies, ledgers: viewLedgers, logs: viewLogs, healing: viewHealing, events: viewEvents };

// --- what is open ------------------------------------------------------------------------------------------------

function place() {
  const [path, query] = location.hash.slice(1).split("?");
  const [view, ...parts] = path.split("/").filter((p) => p);
  return { view: view in VIEWS ? view : "overview", parts, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

async function refresh() {
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  const { view, parts, query } = place();
  try {
    overview = await ask("/overview", mine.signal);
    const cards = await DRAW[view](mine.signal, parts, query);
    if (mine !== asking) return;
    head();
    draw(cards);
  } catch (error) {
    if (mine !== asking || error.name === "AbortError") return;
    complain(error instanceof TypeError ? "The dashboard doesn't answer: is it still running?" : error.message);
    if (shown !== location.hash) draw([card(VIEWS[view], h("p", { class: "dim" }, "Nothing to show: the error is above."))]);
  } finally {
    if (mine === asking) asking = null;
  }
}

function draw(cards) {
  // What somebody types into, stands on, marks, presses or has scrolled to stays.
  const inside = main.contains(document.activeElement) ? document.activeElement : null;
  const same = shown === location.hash, marked = getSelection();
  if (same && (pressed || (inside && ["INPUT", "SELECT"].includes(inside.tagName)))) return;
  if (same && !marked.isCollapsed && main.contains(marked.anchorNode)) return;
  const scrolled = same ? [...main.querySelectorAll(".scroll")].map((e) => e.scrollLeft) : [];
  const label = inside && same ? inside.getAttribute("aria-label") || inside.textContent : null;
  main.replaceChildren(...cards.flat(Infinity).filter((c) => c));
  [...main.querySelectorAll(".scroll")].forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
  if (label) {
    const again = [...main.querySelectorAll("a, button")].find((e) => (e.getAttribute("aria-label") || e.textContent) === label);
    if (again) again.focus({ preventScroll: true });
  }
  if (!same) { shown = location.hash; window.scrollTo(0, 0); }
}

function navigate() {
  const { view } = place();
  document.getElementById("nav").replaceChildren(...Object.entries(VIEWS).map(([name, title]) =>
    h("a", { href: `#${name}`, "aria-current": name === view ? "page" : null }, title)));
  refresh();
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

function keys() {
  const rows = [...Object.values(VIEWS).map((title, i) => [String(i + 1), title]), ["/", "find a ledger"], ["t", "light or dark"], ["?", "this"], ["Esc", "close"]];
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, "Keys"), h("ul", { class: "plain" }, rows.map(([key, what]) => h("li", {}, h("kbd", {}, key), " ", what))),
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

function find() {
  if (place().view === "ledgers" && document.getElementById("search")) { document.getElementById("search").focus(); return; }
  const waiting = new MutationObserver(() => {
    const field = document.getElementById("search");
    if (field) { waiting.disconnect(); field.focus(); }
  });
  waiting.observe(main, { childList: true });
  location.hash = "#ledgers";
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
  const views = Object.keys(VIEWS), number = Number(event.key);
  if (number >= 1 && number <= views.length) location.hash = `#${views[number - 1]}`;
  else if (event.key === "t") theme();
  else if (event.key === "?") keys();
  else if (event.key === "/") { event.preventDefault(); find(); }
});
document.addEventListener("pointerdown", () => { pressed = true; });
for (const name of ["pointerup", "pointercancel", "blur"]) window.addEventListener(name, () => { pressed = false; });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("keys").addEventListener("click", keys);
window.addEventListener("hashchange", navigate);
if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
navigate();
setInterval(() => { if (!document.hidden && !asking) refresh(); }, INTERVAL_MS);
