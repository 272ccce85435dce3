// DOM without HTML text: whatever a log or a node says becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Writes only what changed: a reader's selection and a screen reader's place stay where they are.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, className) {
  if (node.getAttribute("class") !== className) node.setAttribute("class", className);
}

// Makes the children of `parent` follow `items`: each keeps its element for as long as its key is there.
export function sync(parent, items, keyOf, create, update) {
  parent.parts ??= new Map();
  const wanted = new Set(items.map(keyOf));
  for (const [key, part] of parent.parts) {
    if (!wanted.has(key)) {
      part.root.remove();
      parent.parts.delete(key);
    }
  }
  items.forEach((item, idx) => {
    const key = keyOf(item);
    if (!parent.parts.has(key)) parent.parts.set(key, create(item));
    const part = parent.parts.get(key);
    if (parent.children[idx] !== part.root) parent.insertBefore(part.root, parent.children[idx] ?? null);
    update(part, item);
  });
}

// One shape for each word: colour alone tells nothing to many eyes.
const ICONS = {
  serving: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1zM4.5 8.2l2.4 2.4 4.6-5",
  loading: "M8 1.5a6.5 6.5 0 1 1-6.5 6.5M8 4.5V8l2.5 1.5",
  connecting: "M2.5 8h.01M8 8h.01M13.5 8h.01",
  frozen: "M5 2.5v11M11 2.5v11",
  dead: "M5 1.2h6L14.8 5v6L11 14.8H5L1.2 11V5zM5.5 5.5l5 5M10.5 5.5l-5 5",
  orphaned: "M6.5 4.5 8 3a3.5 3.5 0 0 1 5 5l-1.5 1.5M9.5 11.5 8 13a3.5 3.5 0 0 1-5-5l1.5-1.5M2 2l12 12",
  "not-serving": "M8 1.8 15 14H1zM8 6.2v3.6M8 12v.01",
  unreachable: "M8 1.2a6.8 6.8 0 1 0 0 13.6A6.8 6.8 0 0 0 8 1.2zM3.2 3.2l9.6 9.6",
  warning: "M8 1.8 15 14H1zM8 6.2v3.6M8 12v.01",
  error: "M5 1.2h6L14.8 5v6L11 14.8H5L1.2 11V5zM5.5 5.5l5 5M10.5 5.5l-5 5",
  stopped: "M3.5 3.5h9v9h-9z",
  failed: "M5 1.2h6L14.8 5v6L11 14.8H5L1.2 11V5zM5.5 5.5l5 5M10.5 5.5l-5 5",
};

export function badge(word) {
  const root = element("span", "badge");
  const drawing = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "icon" });
  const path = svg("path", {});
  drawing.append(path);
  const text = element("span");
  root.append(drawing, text);
  const part = { root, path, text };
  setBadge(part, word);
  return part;
}

export function setBadge(part, word) {
  setClass(part.root, `badge is-${word}`);
  setText(part.text, word);
  const shape = ICONS[word] ?? ICONS.warning;
  if (part.path.getAttribute("d") !== shape) part.path.setAttribute("d", shape);
}
