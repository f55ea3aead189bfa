"use strict";
// Nothing of the data ever reaches innerHTML: every text goes through textContent.
(() => {
  const element = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const MINUS = "\u2212";

  // Tables: a button in every header; the first press sorts numbers downwards and words upwards.
  const sortKey = (cell) => {
    const text = (cell.dataset.key ?? cell.textContent).trim();
    const number = parseFloat(text.replaceAll(MINUS, "-"));
    if (text === "\u2013" || text === "") return null;
    return Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const sortBy = (table, index) => {
    const headers = [...table.tHead.rows[0].cells];
    const header = headers[index];
    const rows = [...table.tBodies[0].rows];
    const keys = new Map(rows.map((row) => [row, sortKey(row.cells[index])]));
    const numeric = [...keys.values()].some((key) => typeof key === "number");
    const before = header.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : numeric;
    headers.forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    rows.sort((first, second) => {
      const a = keys.get(first);
      const b = keys.get(second);
      if (a === null || b === null) return (a === null) - (b === null); // What is not known stays below.
      return descending ? compare(b, a) : compare(a, b);
    });
    table.tBodies[0].append(...rows);
  };
  const makeSortable = (table) => {
    if (table.tBodies[0].rows.length < 2) return;
    [...table.tHead.rows[0].cells].forEach((header, index) => {
      if ("unsortable" in header.dataset) return;
      const button = element("button", "", header.textContent);
      button.type = "button";
      button.title = "Sort by this column";
      button.addEventListener("click", () => sortBy(table, index));
      header.replaceChildren(button);
    });
  };
  document.querySelectorAll("table.sortable").forEach(makeSortable);

  // What is folded is printed too.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((part) => { part.open = false; });
  });

  window.realmReport = Object.freeze({ element, MINUS, makeSortable });
})();
