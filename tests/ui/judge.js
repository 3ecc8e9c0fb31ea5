// What is wrong with the view that is shown: texts whose contrast is below 4.5:1 (WCAG 2.2, 1.4.3), what does not
// fit into the width, pictures that no key reaches, controls that a screen reader cannot name, and states without
// a word or a shape.

const rgba = (text) => {
  const numbers = text.match(/[\d.]+/g).map(Number);
  return numbers.length === 3 ? [...numbers, 1] : numbers;
};

function luminance([red, green, blue]) {
  const linear = (value) => value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

const over = (top, below) => [0, 1, 2].map((part) => top[part] * top[3] + below[part] * (1 - top[3])).concat(1);

function ground(node) {
  const layers = [];
  for (let at = node; at; at = at.parentElement) {
    layers.push(rgba(getComputedStyle(at).backgroundColor));
    if (layers.at(-1)[3] === 1) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
}

function* faint() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || node.closest("script, option, .hidden, .skip") || !node.checkVisibility() || node.matches(":disabled")) continue;
    const below = ground(node), ink = over(rgba(getComputedStyle(node).color), below);
    const [light, dark] = [luminance(ink), luminance(below)].sort((one, other) => other - one);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) yield `contrast ${contrast.toFixed(2)}: ${text.data.trim().slice(0, 40)} in ${node.className || node.tagName}`;
  }
}

function* tooWide() {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) yield `the page is ${document.documentElement.scrollWidth} wide`;
  for (const node of document.querySelectorAll("main *, dialog[open] *")) {
    const { right, width: own } = node.getBoundingClientRect();
    // What scrolls by itself, or is there for screen readers alone, may be wider.
    if (right > width + 1 && own > 0 && !node.closest("nav, .hidden, .skip, .log, thead, .table")) yield `${node.tagName}.${node.className} reaches ${Math.round(right)}`;
  }
}

function* unreachable() {
  for (const node of document.querySelectorAll("main canvas, main .chart")) {
    if (!node.ariaHidden && !node.parentElement.closest(".chart") && node.tabIndex < 0) yield `no key reaches ${node.outerHTML.slice(0, 80)}`;
  }
}

function* unnamed() {
  for (const node of document.querySelectorAll("a, button, input, select, textarea, canvas, [role=img], [role=application]")) {
    const named = node.textContent.trim() || node.getAttribute("aria-label") || node.labels?.length;
    if (!named && !node.ariaHidden && !node.parentElement.closest("[role=application][aria-label]")) yield `without a name: ${node.outerHTML.slice(0, 80)}`;
  }
}

function* byColourAlone() {
  for (const node of document.querySelectorAll(".state")) {
    const [shape, ...words] = node.textContent.trim().split(/\s+/);
    if (/\w/.test(shape) || words.length === 0) yield `told by its colour: ${node.outerHTML.slice(0, 80)}`;
  }
}

const judge = () => [...new Set([...faint(), ...tooWide(), ...unreachable(), ...unnamed(), ...byColourAlone()])];
