// How do elements come to be? Text is only ever set as text, and links only lead into this page: names and reasons come from
// whoever reports them, and may say anything.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// Where a page of ours is: `place("nodes", name)`.
export const place = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

// The same text again costs nothing.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function set(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

// Make the children of `parent` those of `items`, in order. What has a child already keeps it; `paint(child, item)` is only
// called where the item is another value than the one last painted.
export function keyed(parent, items, keyOf, make, paint) {
  const had = parent.keyed ?? new Map();
  const kept = new Map();
  const keys = new Set(items.map(keyOf));
  for (const [key, { child }] of had) if (!keys.has(key)) child.remove();
  let next = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let { child, was } = had.get(key) ?? { child: make(item) };
    if (was !== item) paint(child, item);
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
    kept.set(key, { child, was: item });
  }
  parent.keyed = kept;
}
