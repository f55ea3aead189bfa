"use strict";
// The explorer of worked examples. Nothing of the data reaches innerHTML: every text is appended as text.
(() => {
  const source = document.getElementById("examples");
  if (!source) return;
  const { cells, passages, examples } = JSON.parse(source.textContent);
  const root = document.getElementById("explorer");
  const form = root.querySelector("form");
  root.hidden = false;

  const element = (name, className, ...children) => {
    const node = document.createElement(name);
    node.className = className;
    node.append(...children);
    return node;
  };
  const number = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));
  const reader = (value) => (value === null ? "–" : Math.exp(Math.min(0, value)).toPrecision(2));
  const titles = { cell: Object.fromEntries(cells), kind: { cloze: "masked sentence", question: "question" } };
  const nameOf = (field, value) => titles[field]?.[value] ?? value;

  const FIELDS = ["cell", "seed", "kind", "moment"];
  FIELDS.forEach((field) =>
    form.elements[field].append(
      new Option("all", ""),
      ...[...new Set(examples.map((example) => String(example[field])))].map((value) =>
        new Option(nameOf(field, value), value))));

  const passage = ([place, , , , isGold, start, end]) => {
    if (place < 0) return [element("em", "", "null document")];
    const [title, body] = passages[place];
    const span = end > start ? element("mark", "", body.slice(start, end)) : "";
    const gold = isGold ? element("span", "tag", "holds the fact") : "";
    return [element("strong", "", title), gold, element("br", ""), body.slice(0, start), span, body.slice(end)];
  };
  const show = (example, place) => {
    const where = FIELDS.map((field) => nameOf(field, example[field])).join(" · ");
    const facts = [
      `answer: ${example.answer}`,
      example.prediction === null ? "" : `prediction: ${example.prediction}`,
      example.null === null ? "" : `log p(y|x) without retrieval: ${number(example.null, 2)}`,
      example.marginal === null ? "" : `log p(y|x) over all candidates: ${number(example.marginal, 2)}`,
    ];
    const head = element("tr", "", ...["p(z|x)", "p(y|z,x)", "utility", "passage"].map((name) => element("th", "", name)));
    const rows = example.candidates.map((candidate) =>
      element("tr", "",
        element("td", "number", number(candidate[1], 3)),
        element("td", "number", reader(candidate[2])),
        element("td", "number", number(candidate[3], 2)),
        element("td", "", ...passage(candidate))));
    const shown = element("details", "",
      element("summary", "", example.text, " ", element("small", "", where)),
      element("p", "", facts.filter(Boolean).join(" · ")),
      element("div", "scroll", element("table", "", head, ...rows)));
    shown.open = place === 0;
    return shown;
  };

  const update = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const textOf = (example) =>
      [example.text, example.answer, example.prediction, ...example.candidates.flatMap(([place]) => passages[place] ?? [])]
        .join(" ").toLowerCase();
    const found = examples.filter((example) =>
      FIELDS.every((field) => ["", String(example[field])].includes(form.elements[field].value)) &&
      words.every((word) => textOf(example).includes(word)));
    root.querySelector(".count").textContent = `${found.length} of ${examples.length} examples`;
    root.querySelector(".examples").replaceChildren(...found.map(show));
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
})();
