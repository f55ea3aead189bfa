"use strict";
// A form that hides those of some elements that it does not ask for, by their data and words.
const filtered = (form, elements, count, thing) => {
  const update = () => {
    const { words, ...choices } = Object.fromEntries(new FormData(form));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const one of elements) {
      const text = one.textContent.toLowerCase();
      one.hidden = !(
        Object.entries(choices).every(([name, value]) => ["", one.dataset[name]].includes(value)) &&
        wanted.every((word) => text.includes(word)));
    }
    count.textContent = `${elements.filter((one) => !one.hidden).length} of ${elements.length} ${thing}`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
};
// The explorer of worked examples.
const explorer = document.getElementById("explorer");
if (explorer) filtered(explorer.querySelector("form"), [...explorer.querySelectorAll("details")], explorer.querySelector(".count"), "examples");
// The table of all studies: filtered by its form, sorted by the column whose title is clicked, the other way round by a second click.
const studies = document.querySelector("table.studies");
if (studies) {
  const form = document.querySelector("form.filter");
  filtered(form, [...studies.tBodies[0].rows], form.querySelector(".count"), "studies");
  [...studies.tHead.rows[0].cells].forEach((title, column) => title.firstChild.addEventListener("click", () => {
    const way = title.ariaSort === "ascending" ? -1 : 1;
    const isNumber = title.firstChild.dataset.kind === "number";
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    for (const other of studies.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const sorted = [...studies.tBodies[0].rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");  // what is not known comes last
      return way * (isNumber ? a - b : a.localeCompare(b));
    });
    studies.tBodies[0].append(...sorted);
  }));
}
