// Asks this machine's `sparkctl dashboard` every two seconds and brings the page up to date. Changes nothing.

import { badge, element, setBadge, setClass, setText, sync } from "./elements.js";
import { figureGrid, updateFigures } from "./figures.js";

const PERIOD_MS = 2000;
const TIMEOUT_MS = 8000;
const KEY = "sparkctl-dashboard-key";

const $ = (id) => document.getElementById(id);
let isPaused = false;
let lastGood = null;

// The key comes behind "#": a browser sends that to nobody. It stays with this tab.
function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!given) return;
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

async function ask() {
  const key = sessionStorage.getItem(KEY);
  const reply = await fetch("/api/state", {
    headers: key ? { Authorization: `Bearer ${key}` } : {},
    cache: "no-store",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (reply.status === 401) return { needsKey: true, wasWrong: Boolean(key) };
  if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
  return reply.json();
}

async function tick() {
  if (!isPaused && !document.hidden) {
    try {
      const state = await ask();
      if (state.needsKey) showKeyForm(state.wasWrong);
      else show(state);
    } catch (error) {
      showLost(error);
    }
  }
  setTimeout(tick, PERIOD_MS);
}

function showKeyForm(wasWrong) {
  $("ask-key").hidden = false;
  setText($("key-problem"), wasWrong ? "That key is not the one that sparkctl dashboard printed." : "");
  setText($("live"), "a key is needed");
  sessionStorage.removeItem(KEY);
}

function showLost(error) {
  const since = lastGood ? ` since ${lastGood.toLocaleTimeString()}` : "";
  setText($("live"), `no answer from sparkctl dashboard${since}: is it still running? (${error.message})`);
  setClass($("live"), "live is-lost");
  document.body.classList.add("is-stale");
}

function show(state) {
  lastGood = new Date();
  $("ask-key").hidden = true;
  document.body.classList.remove("is-stale");
  document.body.dataset.ready = "yes";
  setClass($("live"), "live");
  setText($("live"), isPaused ? "paused" : "live");
  const runs = [...state.runs];
  if (runs.length === 0) runs.push({ run_id: "none" });
  sync($("runs"), runs, (run) => run.run_id, createRun, (part, run) => part.update(run, state));
  $("ended-section").hidden = state.ended.length === 0 && Object.keys(state.unreadable).length === 0;
  const damaged = Object.entries(state.unreadable).map(([run_id, note]) =>
    ({ run_id, record: "warning", recipe: "record not readable", num_nodes: null, note }));
  sync($("ended"), [...state.ended, ...damaged], (run) => run.run_id, createEnded, updateEnded);
  const serving = state.runs.filter((run) => run.verdict === "serving").length;
  document.title = state.runs.length ? `${serving}/${state.runs.length} serving - sparkctl` : "sparkctl";
}

function createRun(run) {
  return run.run_id === "none" ? createNothing() : createOpenRun();
}

function createNothing() {
  const root = element("section", "run nothing");
  root.append(element("h2", "", "No cluster is running"),
    element("p", "", "Start one in a terminal; this page shows it by itself."));
  for (const command of ["sparkctl up --nodes 3", "sparkctl up --recipe v41-flash-3x"]) {
    const line = element("p");
    line.append(element("code", "", command));
    root.append(line);
  }
  return { root, update: () => {} };
}

function createOpenRun() {
  const root = element("section", "run");
  const head = element("div", "run-head");
  const title = element("h2");
  const verdict = badge("connecting");
  verdict.root.setAttribute("role", "status");
  head.append(title, verdict.root);
  const facts = element("p", "facts");
  const proof = element("p", "proof");
  const load = createLoad();
  const grid = figureGrid();
  const nodes = createNodes();
  const errors = createErrors();
  root.append(head, facts, proof, load.root, grid.root, nodes.root, errors.root);
  function update(run, state) {
    root.dataset.verdict = run.verdict;
    setText(title, run.recipe);
    setBadge(verdict, run.verdict);
    const up = duration(state.at_unix - run.started_unix);
    const skipped = run.skipped_checks.length ? ` | checks skipped: ${run.skipped_checks.join(", ")}` : "";
    setText(facts, `${run.model} | ${run.url} | run ${run.run_id} | started ${up} ago${skipped}`);
    setText(proof, proofText(run));
    setClass(proof, run.proof.failure ? "proof is-bad" : "proof");
    updateLoad(load, run.load);
    updateFigures(grid, run);
    updateNodes(nodes, run.nodes);
    updateErrors(errors, run.errors);
  }
  return { root, update };
}

function proofText(run) {
  if (run.proof.failure) return `No token: ${run.proof.failure}`;
  if (run.proof.age_s === null) return run.load ? "" : "No token was seen so far.";
  const took = run.proof.seconds === null ? "" : ` in ${Math.round(1000 * run.proof.seconds)} ms`;
  const figures = run.metrics_problem ? ` No figures: ${run.metrics_problem}` : "";
  return `Last proof: a token generated${took}, ${duration(run.proof.age_s)} ago.${figures}`;
}

function createLoad() {
  const root = element("div", "load");
  const text = element("p");
  const bar = progressBar();
  root.append(bar.root, text);
  return { root, text, bar };
}

function updateLoad(part, load) {
  part.root.hidden = load === null;
  if (load === null) return;
  const usual = load.num_earlier === 1 ? "as the last start" : `median of ${load.num_earlier} starts`;
  const eta = load.usual_s === null ? "no earlier start of this recipe to estimate from"
    : load.remaining_s === null ? `longer than usual (${duration(load.usual_s)}, ${usual})`
      : `about ${duration(load.remaining_s)} left (usually ${duration(load.usual_s)}, ${usual})`;
  setText(part.text, `${load.phase ?? "starting"} | ${duration(load.elapsed_s)} so far | ${eta}`);
  setProgress(part.bar, load.phase_share, load.phase ?? "starting");
}

function progressBar() {
  const root = element("div", "bar");
  root.setAttribute("role", "progressbar");
  root.setAttribute("aria-valuemin", "0");
  root.setAttribute("aria-valuemax", "100");
  const fill = element("div", "fill");
  root.append(fill);
  return { root, fill };
}

function setProgress(bar, share, label) {
  const percent = Math.round(100 * (share ?? 0));
  bar.fill.style.width = `${percent}%`;
  bar.root.setAttribute("aria-valuenow", String(percent));
  bar.root.setAttribute("aria-label", label);
}

function createNodes() {
  const root = element("div", "scroll");
  root.tabIndex = 0;
  root.setAttribute("role", "region");
  root.setAttribute("aria-label", "Nodes");
  const table = element("table", "nodes");
  const head = element("thead");
  const row = element("tr");
  for (const name of ["node", "ranks", "status", "processes", "details"]) {
    const cell = element("th", "", name);
    cell.scope = "col";
    row.append(cell);
  }
  head.append(row);
  const body = element("tbody");
  table.append(head, body);
  root.append(table);
  return { root, body };
}

function createNode() {
  const root = element("tr");
  const name = element("th");
  name.scope = "row";
  const cells = ["ranks", "status", "processes", "details"].map((className) => element("td", className));
  const status = badge("connecting");
  cells[1].append(status.root);
  root.append(name, ...cells);
  return { root, name, ranks: cells[0], status, processes: cells[2], details: cells[3] };
}

function updateNodes(part, nodes) {
  sync(part.body, nodes, (node) => node.name, createNode, (row, node) => {
    row.root.dataset.status = node.status;
    setText(row.name, node.is_head ? `${node.name} (head)` : node.name);
    setText(row.ranks, node.ranks.join(", "));
    setBadge(row.status, node.status);
    setText(row.processes, node.num_processes ? String(node.num_processes) : "-");
    setText(row.details, node.detail);
  });
}

function createErrors() {
  const root = element("div", "errors");
  const title = element("h3");
  const list = element("ul");
  root.append(title, list);
  return { root, title, list };
}

function updateErrors(part, errors) {
  setText(part.title, errors.length ? `Recent errors and warnings (${errors.length})` : "No recent errors");
  sync(part.list, errors, (error) => `${error.node}\n${error.text}`, createError, updateError);
}

function createError(error) {
  const root = element("li");
  const level = badge(error.level);
  const where = element("span", "where");
  const text = element("code", "text");
  const hint = element("p", "hint");
  root.append(level.root, where, text, hint);
  return { root, level, where, text, hint };
}

function updateError(part, error) {
  setBadge(part.level, error.level);
  const times = error.num_times > 1 ? ` (${error.num_times} times)` : "";
  setText(part.where, `${error.node} ${error.time}${times}`);
  setText(part.text, error.text);
  setText(part.hint, error.hint);
}

function createEnded(run) {
  const root = element("li");
  const status = badge(run.record);
  const text = element("span");
  root.append(status.root, text);
  return { root, status, text };
}

function updateEnded(part, run) {
  setBadge(part.status, run.record);
  const nodes = run.num_nodes === null ? "" : ` on ${run.num_nodes} node(s)`;
  setText(part.text, `${run.run_id}  ${run.recipe}${nodes}${run.note ? `: ${run.note}` : ""}`);
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  setText($("pause"), isPaused ? "Go on" : "Pause");
  setText($("live"), isPaused ? "paused" : "live");
});

$("ask-key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
});

takeKey();
tick();
