"use strict";
// The explorer of worked examples. Nothing of the data reaches innerHTML: every text goes through textContent.
(() => {
  const source = document.getElementById("examples");
  if (!source) return;
  const { cells, passages, examples } = JSON.parse(source.textContent);
  const root = document.getElementById("explorer");
  const form = root.querySelector("form");
  const list = root.querySelector("ul");
  const detail = root.querySelector(".detail");
  root.hidden = false;

  const element = (name, text, className) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const number = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));
  const chance = (value) =>
    value === null ? "–" : value >= 0.0005 || value === 0 ? value.toFixed(3) : value.toExponential(1).replace("-", "−");
  const titles = { cell: Object.fromEntries(cells), kind: { cloze: "masked sentence", question: "question" } };
  const nameOf = (field, value) => titles[field]?.[value] ?? value;

  const FIELDS = ["cell", "seed", "kind", "moment"];
  FIELDS.forEach((field) => {
    const select = form.elements[field];
    select.append(new Option("all", ""));
    new Set(examples.map((example) => String(example[field]))).forEach((value) =>
      select.append(new Option(nameOf(field, value), value)));
  });

  const passageCell = ([place, , , , isGold, start, end]) => {
    const cell = element("td");
    if (place < 0) {
      cell.append(element("em", "null document"));
      return cell;
    }
    const [title, body] = passages[place];
    cell.append(element("strong", title), isGold ? element("span", "holds the fact", "tag") : "", element("br"));
    cell.append(body.slice(0, start), end > start ? element("mark", body.slice(start, end)) : "", body.slice(end));
    return cell;
  };
  const candidateTable = (example) => {
    const table = element("table");
    const head = table.createTHead().insertRow();
    ["p(z|x)", example.kind === "question" ? "p(span|z,x)" : "p(y|z,x)", "utility", "passage"].forEach((name) =>
      head.append(element("th", name, name === "passage" ? "" : "number")));
    const body = table.createTBody();
    example.candidates.forEach((candidate) => {
      const [, trust, reader, utility] = candidate;
      const row = body.insertRow();
      row.append(
        element("td", chance(trust), "number"),
        element("td", chance(reader === null ? null : Math.exp(Math.min(0, reader))), "number"),
        element("td", number(utility, 2), "number"),
        passageCell(candidate),
      );
    });
    const scroll = element("div", undefined, "scroll");
    scroll.append(table);
    return scroll;
  };
  const where = (example) =>
    [nameOf("cell", example.cell), `seed ${example.seed}`, nameOf("kind", example.kind), example.moment].join(" · ");

  const show = (example, button) => {
    list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
    button?.setAttribute("aria-current", "true");
    detail.replaceChildren();
    if (!example) return;
    detail.append(element("small", where(example)), element("p", example.text, "question"));
    const facts = [`answer: ${example.answer}`];
    if (example.prediction !== null) facts.push(`prediction: ${example.prediction}`);
    if (example.null !== null) facts.push(`log p(y|x) without retrieval: ${number(example.null, 2)}`);
    if (example.marginal !== null) facts.push(`log p(y|x) over all candidates: ${number(example.marginal, 2)}`);
    detail.append(element("p", facts.join(" · ")), candidateTable(example));
    const [further, rest] = example.further;
    if (further) detail.append(element("small", `${further} further candidates, p(z|x) ${chance(rest)} together`));
  };

  const update = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const holds = (example, word) =>
      `${example.text} ${example.answer} ${example.prediction ?? ""}`.toLowerCase().includes(word) ||
      example.candidates.some(([place]) => place >= 0 && passages[place].join(" ").toLowerCase().includes(word));
    const found = examples.filter(
      (example) =>
        FIELDS.every((field) => !form.elements[field].value || String(example[field]) === form.elements[field].value) &&
        words.every((word) => holds(example, word)));
    root.querySelector(".count").textContent = `${found.length} of ${examples.length} examples`;
    const buttons = found.map((example) => {
      const button = element("button", example.text);
      button.type = "button";
      button.append(element("br"), element("small", where(example)));
      button.addEventListener("click", () => show(example, button));
      return button;
    });
    list.replaceChildren(...buttons.map((button) => {
      const item = element("li");
      item.append(button);
      return item;
    }));
    show(found[0], buttons[0]);
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  // what most readers want to see first
  const trained = examples.find((example) => example.moment === "after pre-training");
  if (trained) form.elements.cell.value = trained.cell;
  update();
})();
