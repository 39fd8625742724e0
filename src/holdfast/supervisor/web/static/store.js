// What is known of the fleet? What the supervisor last said; and whoever shows some of it is told, once per frame, what has
// changed.

const DEEDS = 2000; // kept in a page that is open for weeks

export const fleet = { about: null, role: "operate", nodes: new Map(), jobs: new Map(), swaps: [], deeds: new Map() };

const SAME_S = 2; // so much may be the network's doing, and HTTP's dates have whole seconds

let ahead = 0; // of this browser's clock, seconds: ages are reckoned by the clock of whoever wrote the times
let listener = () => {};
let pending = null;

// Seconds since the epoch, by the supervisor's clock.
export const now = () => Date.now() / 1000 + ahead;

// `date`: what an answer says it is there.
export function setClock(date) {
  const difference = (Date.parse(date) + 500 - Date.now()) / 1000;
  ahead = Math.abs(difference) > SAME_S ? difference : 0;
}

export const newestDeeds = (wanted = () => true) =>
  [...fleet.deeds.values()].filter(wanted).sort((one, other) => other.at_unix - one.at_unix);
export const swapOf = (name) => fleet.swaps.find((swap) => swap.node === name || swap.spare === name);

// `listen(changes => …)`: {all, nodes: Set of names, jobs: Set of names, deeds: Set of ids}
export function listen(told) {
  listener = told;
}

export function replace(said) {
  heard(said);
  fleet.nodes = new Map(said.nodes.map((node) => [node.name, node]));
  fleet.jobs = new Map(said.jobs.map((job) => [job.name, job]));
  fleet.swaps = said.swaps;
  fleet.deeds = new Map(said.deeds.map((deed) => [deed.id, deed]));
  note().all = true;
}

export function change(said) {
  heard(said);
  const changes = note();
  for (const node of said.nodes ?? []) put(fleet.nodes, changes.nodes, node.name, node);
  for (const job of said.jobs ?? []) put(fleet.jobs, changes.jobs, job.name, job);
  if (said.swaps) fleet.swaps = said.swaps;
  for (const name of said.gone?.nodes ?? []) put(fleet.nodes, changes.nodes, name, null);
  for (const name of said.gone?.jobs ?? []) put(fleet.jobs, changes.jobs, name, null);
  keep(said.deeds ?? []);
}

// Decisions from elsewhere than the stream: older ones, as a page asks for them.
export function keep(deeds) {
  const changes = note();
  for (const deed of deeds) {
    if (JSON.stringify(fleet.deeds.get(deed.id)) !== JSON.stringify(deed)) put(fleet.deeds, changes.deeds, deed.id, deed);
  }
  if (fleet.deeds.size > DEEDS) for (const old of newestDeeds().slice(DEEDS)) fleet.deeds.delete(old.id);
}

function heard(said) {
  fleet.about = {
    ...fleet.about,
    ...Object.fromEntries(Object.entries(said).filter(([, value]) => !(value instanceof Object))),
  };
}

function put(table, changed, key, value) {
  if (value === null) table.delete(key);
  else table.set(key, value);
  changed.add(key);
}

function note() {
  if (!pending) {
    pending = { all: false, nodes: new Set(), jobs: new Set(), deeds: new Set() };
    requestAnimationFrame(() => {
      const changes = pending;
      pending = null;
      listener(changes);
    });
  }
  return pending;
}
