// A small plot of the last minutes: time runs to the right, a gap is where nothing was measured.

import { setClass, svg } from "./elements.js";

const WIDTH = 200;
const HEIGHT = 36;
const SPAN_S = 900;
const PAD = 2;

export function sparkline() {
  const root = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "plot", role: "img",
  });
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
  root.append(area, line);
  return { root, area, line };
}

// `points`: [seconds ago, value or null], oldest first. `top`: full scale; by default the largest value.
export function drawSparkline(part, points, describe, top = 0) {
  const values = points.map(([, value]) => value).filter((value) => value !== null);
  const largest = Math.max(top, ...values, 0);
  const y = (value) => HEIGHT - PAD - (largest ? value / largest : 0) * (HEIGHT - 2 * PAD);
  const x = (ago) => Math.max(0, WIDTH - (ago / SPAN_S) * WIDTH);
  const pieces = [];
  let piece = [];
  for (const [ago, value] of points) {
    if (value === null) {
      pieces.push(piece);
      piece = [];
    } else {
      piece.push(`${x(ago).toFixed(1)} ${y(value).toFixed(1)}`);
    }
  }
  pieces.push(piece);
  const drawn = pieces.filter((each) => each.length > 0);
  // A single point is drawn as a dash: a line of no length is not seen.
  const lines = drawn.map((each) => (each.length > 1 ? `M${each.join("L")}` : `M${each[0]}h2`));
  const areas = drawn.filter((each) => each.length > 1).map((each) => {
    const [first] = each[0].split(" ");
    const [last] = each[each.length - 1].split(" ");
    return `M${first} ${HEIGHT}L${each.join("L")}L${last} ${HEIGHT}z`;
  });
  part.line.setAttribute("d", lines.join(""));
  part.area.setAttribute("d", areas.join(""));
  setClass(part.root, values.length ? "plot" : "plot is-empty");
  part.root.setAttribute("aria-label", values.length
    ? `last 15 minutes: ${describe(Math.min(...values))} to ${describe(Math.max(...values))}`
    : "last 15 minutes: not measured");
}
