// Which filters are in the page's address? They outlive a reload, and who is sent the address sees the same.

// `remember({text: "late"})`: what is empty is left out.
export function remember(values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  const [path] = location.hash.split("?");
  history.replaceState(null, "", `${path || "#/"}${query.size ? `?${query}` : ""}`);
}
