// The figures of a run: a value, what it is made of, and its last minutes.

import { element, setClass, setText } from "./elements.js";
import { drawSparkline, sparkline } from "./sparkline.js";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
const fine = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2, minimumFractionDigits: 2 });

export const NOT_MEASURED = "not measured";

const count = (value) => whole.format(value);
const rate = (value) => (value < 100 ? short.format(value) : whole.format(value));
const share = (value) => `${short.format(100 * value)} %`;
const micros = (value) => (value < 1000 ? `${whole.format(value)} us` : `${short.format(value / 1000)} ms`);
const some = (value, show, before = "", after = "") => (value === null ? "" : before + show(value) + after);

// With the plugin's controller: what drafting must bring to pay, and who goes without.
function draftNote(f) {
  if (f.draft_requests_off === null) return "with drafting, per request";
  const bar = some(f.draft_break_even, (value) => fine.format(value), "pays from ");
  const loses = f.draft_below_break_even ? "costs more than it brings" : "";
  return [loses, bar, some(f.draft_requests_off, count, "requests without drafts: ")].filter(Boolean).join(", ");
}

// `why`: said of a figure that this engine does not give while it gives others.
const FIGURES = [
  {
    name: "tokens_per_s", title: "Tokens per second", show: rate, plot: true,
    note: (f) => some(f.prefill_tokens_per_s, rate, "prompt tokens: ", "/s"),
    why: "the engine does not count its tokens",
  },
  {
    name: "tokens_per_step", title: "Tokens per step", show: (value) => fine.format(value), plot: true,
    note: draftNote,
    why: "no draft verified",
  },
  {
    name: "kv_usage", title: "KV pool in use", show: share, plot: true, top: 1,
    note: (f) => f.kv_tokens === null ? "" : `${some(f.kv_used_tokens, count)} of ${count(f.kv_tokens)} tokens`,
    why: "the engine does not tell its pool",
  },
  {
    name: "queued", title: "Requests waiting", show: count, plot: true, top: 4,
    note: (f) => some(f.running, count, "running: "),
    why: "the engine does not tell its queue",
  },
  {
    name: "engram_hit_share", title: "Engram hit rate", show: share, plot: true, top: 1,
    note: (f) => some(f.prefix_hit_share, share, "prefix cache: "),
    why: "no rows read from disk",
  },
  {
    name: "engram_wait_p95_us", title: "Engram wait, p95", show: micros, plot: true,
    note: () => "per layer and step, upper bound",
    why: "no step waits for rows",
  },
];

export function figureGrid() {
  const root = element("dl", "figures");
  const parts = FIGURES.map((figure) => {
    const cell = element("div", "figure");
    const value = element("dd", "value");
    const note = element("dd", "note");
    const drawing = element("dd", "drawing");
    const plot = sparkline();
    drawing.append(plot.root);
    cell.dataset.figure = figure.name;
    cell.append(element("dt", "", figure.title), value, note, drawing);
    root.append(cell);
    return { value, note, plot };
  });
  return { root, parts };
}

// `problem`: why there are no figures at all; empty when there are.
export function updateFigures(grid, run) {
  FIGURES.forEach((figure, idx) => {
    const part = grid.parts[idx];
    const value = run.figures[figure.name];
    const isBeyond = figure.name === "engram_wait_p95_us" && run.figures.engram_wait_is_beyond;
    const text = isBeyond ? "> 4.0 ms" : value === null ? NOT_MEASURED : figure.show(value);
    setText(part.value, text);
    setClass(part.value, text === NOT_MEASURED ? "value is-missing" : "value");
    setText(part.note, text !== NOT_MEASURED ? figure.note(run.figures)
      : run.metrics_problem ? "no figures from the engine" : figure.why);
    drawSparkline(part.plot, run.plots[figure.name] ?? [], figure.show, figure.top ?? 0);
  });
}
