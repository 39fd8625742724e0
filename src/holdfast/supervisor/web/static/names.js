// How do long names stay apart on a small tile? What all names of a group share is said once, in the group's title.

const LEAST = 6; // so much that is shared is worth it
const MOST = 12; // so much of what is left stands on a tile
const PART = /[-._/:]/;

// What all begin and end with, to whole parts of names: {head: "gke-prod-us-central1-", tail: ".internal"}
export function shared(names) {
  if (names.length < 2) return { head: "", tail: "" };
  const head = common(names, (name, at) => name[at]);
  const rests = names.map((name) => name.slice(head.length));
  const tail = [...common(rests, (name, at) => name[name.length - 1 - at])].reverse().join("");
  return { head: head.length >= LEAST ? head : "", tail: tail.length >= LEAST ? tail : "" };
}

// The longest that all have alike from one end and that ends at a part's border, leaving something of each.
function common(names, letter) {
  const room = Math.min(...names.map((name) => name.length)) - 1;
  let alike = 0,
    border = 0;
  while (alike < room && names.every((name) => letter(name, alike) === letter(names[0], alike))) {
    alike += 1;
    if (PART.test(letter(names[0], alike - 1))) border = alike;
  }
  return Array.from({ length: border }, (_, at) => letter(names[0], at)).join("");
}

// A name without what is shared; of what is still long the beginning and the end.
export function short(name, { head, tail }) {
  const rest = name.slice(head.length, name.length - tail.length);
  return rest.length <= MOST || !head ? rest : `${rest.slice(0, 4)}…${rest.slice(5 - MOST)}`;
}

// "gke-prod-us-central1-….internal"
export const pattern = ({ head, tail }) => (head || tail ? `${head}…${tail}` : "");
