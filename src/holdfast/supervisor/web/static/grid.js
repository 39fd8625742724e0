// Many things, a tile each: how are they shown, and walked through by keys? Only tiles of what changed are touched.
//
// One tile can be reached by Tab (roving tabindex); arrows go from there. A group is a row to a screen reader, however it wraps.

import { h, say } from "./dom.js";
import { pattern, shared, short } from "./names.js";
import { byName, number } from "./words.js";

const ROOMY = 150,
  NAMED = 400; // so many tiles may be large; may have a name

export class Grid {
  // keyOf(item), groupOf(item) → a name that people read, paint(link, item), peek(item), empty: said where nothing is shown,
  // names: whether a key is a name, which `.name` of a tile shows without what its group shares
  constructor({ label, keyOf, groupOf, paint, peek = () => {}, empty = "", names = false }) {
    Object.assign(this, { keyOf, groupOf, paint, peek, empty, names });
    this.cells = new Map();
    this.groups = new Map();
    this.wanted = () => true;
    this.current = null;
    this.body = h("div", { role: "grid", "aria-label": label, "aria-readonly": "true", class: "grid" });
    this.nothing = h("p", { class: "faint", hidden: true });
    this.root = h("div", {}, this.body, this.nothing);
    this.body.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("focusin", (event) => this.#seen(event, true));
    this.body.addEventListener("pointerover", (event) => this.#seen(event, false));
  }

  // All of them, in place of what was there.
  set(items) {
    const keys = new Set(items.map(this.keyOf));
    for (const key of [...this.cells.keys()]) if (!keys.has(key)) this.#remove(key);
    for (const item of items) this.#put(item);
    this.#settle();
  }

  // Some of them: `change(items, keys that are gone)`
  change(items, gone = []) {
    for (const key of gone) this.#remove(key);
    for (const item of items) this.#put(item);
    if (items.length || gone.length) this.#settle();
  }

  filter(wanted) {
    this.wanted = wanted;
    for (const cell of this.cells.values()) this.#show(cell);
    this.#settle();
  }

  // Groups are others from now on.
  regroup(groupOf) {
    this.groupOf = groupOf;
    this.set([...this.cells.values()].map((cell) => cell.item));
  }

  get shown() {
    return this.count;
  }

  #put(item) {
    const key = this.keyOf(item);
    const name = this.groupOf(item);
    let cell = this.cells.get(key);
    if (!cell) {
      const link = h("a", { class: "tile", tabindex: "-1" });
      cell = { key, link, box: h("div", { role: "gridcell", class: "cell" }, link), group: null };
      link.cell = cell;
      this.cells.set(key, cell);
    }
    if (cell.item !== item) this.paint(cell.link, item);
    cell.item = item;
    if (cell.group?.name !== name) {
      this.#leave(cell);
      this.#enter(cell, this.groups.get(name) ?? this.#group(name));
    }
    this.#show(cell);
  }

  #group(name) {
    const title = h("span", { role: "rowheader", class: "group-name" });
    const tiles = h("div", { class: "tiles", role: "presentation" });
    const group = { name, keys: [], alike: null, title, tiles, row: h("div", { role: "row", class: "group" }, title, tiles) };
    this.groups.set(name, group);
    const names = [...this.groups.keys()].sort(byName);
    this.body.insertBefore(group.row, this.groups.get(names[names.indexOf(name) + 1])?.row ?? null);
    return group;
  }

  #enter(cell, group) {
    let low = 0,
      high = group.keys.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (byName(String(group.keys[middle]), String(cell.key)) < 0) low = middle + 1;
      else high = middle;
    }
    group.tiles.insertBefore(cell.box, this.cells.get(group.keys[low])?.box ?? null);
    group.keys.splice(low, 0, cell.key);
    group.alike = null;
    cell.group = group;
  }

  #leave(cell) {
    const group = cell.group;
    if (!group) return;
    group.keys.splice(group.keys.indexOf(cell.key), 1);
    group.alike = null;
    cell.group = null;
    if (!group.keys.length) {
      group.row.remove();
      this.groups.delete(group.name);
    }
  }

  #remove(key) {
    const cell = this.cells.get(key);
    if (!cell) return;
    this.#leave(cell);
    cell.box.remove();
    this.cells.delete(key);
  }

  #show(cell) {
    const hidden = !this.wanted(cell.item);
    if (cell.box.hidden !== hidden) cell.box.hidden = hidden;
  }

  // Counts, density, and whom Tab reaches.
  #settle() {
    this.count = 0;
    for (const group of this.groups.values()) {
      const shown = group.keys.reduce((sum, key) => sum + !this.cells.get(key).box.hidden, 0);
      this.count += shown;
      if (group.row.hidden !== !shown) group.row.hidden = !shown;
      if (this.names) this.#rename(group);
      say(group.title, [group.name, number(shown), group.alike && pattern(group.alike)].filter(Boolean).join(" · "));
    }
    this.body.dataset.density = this.count <= ROOMY ? "roomy" : this.count <= NAMED ? "named" : "dots";
    this.nothing.hidden = this.count > 0;
    say(this.nothing, this.cells.size ? "The filter leaves none." : this.empty);
    this.body.hidden = !this.count;
    const current = this.cells.get(this.current);
    if (!current || current.box.hidden) this.#rove(this.#inOrder()[0] ?? null);
  }

  #rename(group) {
    if (group.alike) return;
    group.alike = shared(group.keys);
    for (const key of group.keys) say(this.cells.get(key).link.querySelector(".name"), short(key, group.alike));
  }

  #inOrder() {
    return [...this.body.querySelectorAll(".cell:not([hidden]) > .tile")].filter((link) => !link.cell.group.row.hidden);
  }

  #rove(link) {
    const was = this.cells.get(this.current);
    if (was) was.link.tabIndex = -1;
    this.current = link?.cell.key ?? null;
    if (link) link.tabIndex = 0;
  }

  #seen(event, focused) {
    const link = event.target.closest?.(".tile");
    if (!link) return;
    if (focused) this.#rove(link);
    this.peek(link.cell.item);
  }

  #key(event) {
    const link = event.target.closest?.(".tile");
    if (!link || event.altKey || event.metaKey) return;
    const all = this.#inOrder();
    const at = all.indexOf(link);
    const next = {
      ArrowLeft: () => all[at - 1],
      ArrowRight: () => all[at + 1],
      Home: () => all[0],
      End: () => all[all.length - 1],
      ArrowUp: () => beside(link, all.slice(0, at).reverse(), (one, other) => one < other),
      ArrowDown: () => beside(link, all.slice(at + 1), (one, other) => one > other),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    next()?.focus();
  }
}

// Of the nearest line of tiles above or below `link`, the one whose middle is nearest to its own.
function beside(link, others, isBeyond) {
  const from = link.getBoundingClientRect();
  const middle = from.left + from.width / 2;
  let best = null,
    line = null,
    distance = Infinity;
  for (const other of others) {
    const to = other.getBoundingClientRect();
    if (!isBeyond(Math.round(to.top), Math.round(from.top))) continue;
    line ??= Math.round(to.top);
    if (Math.round(to.top) !== line) break;
    const away = Math.abs(to.left + to.width / 2 - middle);
    if (away < distance) [best, distance] = [other, away];
  }
  return best;
}
