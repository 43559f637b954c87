(() => {
  "use strict";
  const form = document.getElementById("find");
  const words = document.getElementById("find-words");
  const kind = document.getElementById("find-kind");
  const rows = [...document.querySelectorAll("tr[data-variant]")];
  const details = document.querySelectorAll("[data-details]");

  const isLike = (row) =>
    row.dataset.kinds.split(" ").includes(kind.value) &&
    words.value.toLowerCase().split(/\s+/).every((word) =>
      word.length > 1 && word.startsWith("-")
        ? !row.dataset.words.includes(word.slice(1))
        : word === "-" || row.dataset.words.includes(word));

  const filter = () => {
    const chosen = new Set();
    for (const row of rows) {
      row.hidden = !isLike(row);
      if (!row.hidden) chosen.add(row.dataset.variant);
    }
    for (const each of details) each.hidden = !chosen.has(each.dataset.details);
    document.getElementById("find-count").value = `${chosen.size} of ${rows.length} shown`;
    document.getElementById("find-nothing").hidden = chosen.size > 0;
  };

  // What is asked for is part of the address, so that a view can be kept and sent.
  const remember = () => {
    const asked = new URLSearchParams();
    if (words.value) asked.set("find", words.value);
    if (kind.value !== "all") asked.set("show", kind.value);
    const question = asked.toString() ? `?${asked}` : location.pathname;
    try {
      history.replaceState(null, "", question + location.hash);
    } catch {
      // A browser that allows no such thing for a file on disk: the view is still right.
    }
  };

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const section = target.closest("[data-details]");
    if (section && section.hidden) {
      words.value = "";
      kind.value = "all";
      filter();
      remember();
    }
    const folded = target.closest("details");
    if (folded) folded.open = true;
    target.scrollIntoView();
  };

  const asked = new URLSearchParams(location.search);
  words.value = asked.get("find") ?? "";
  kind.value = asked.get("show") ?? "all";
  if (kind.selectedIndex < 0) kind.value = "all";
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { filter(); remember(); });
  addEventListener("hashchange", reveal);
  // A link to where the page is already changes no address, but may have to open its target again.
  addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) reveal();
  });
  filter();
  reveal();
})();
