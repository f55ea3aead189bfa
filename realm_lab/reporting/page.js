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
  const fixed = (value, digits) => (value === null ? "\u2013" : value.toFixed(digits).replace("-", MINUS));
  const probability = (value) => {
    if (value === null) return "\u2013";
    return value >= 0.0005 || value === 0 ? value.toFixed(3) : value.toExponential(1).replace("-", MINUS);
  };

  // Tables: a button in every header; the first press sorts numbers downwards and words upwards.
  const sortKey = (cell) => {
    const text = cell.textContent.trim();
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
      const button = element("button", "", header.textContent);
      button.type = "button";
      button.title = "Sort by this column";
      button.addEventListener("click", () => sortBy(table, index));
      header.replaceChildren(button);
    });
  };
  document.querySelectorAll("table.sortable").forEach(makeSortable);

  // Retrieval explorer.
  const source = document.getElementById("explorer-data");
  if (!source) return;
  const { examples, kinds, when: times } = JSON.parse(source.textContent);
  const root = document.querySelector(".explorer");
  const form = root.querySelector("form");
  const list = root.querySelector(".examples");
  const detail = root.querySelector(".detail");
  const count = root.querySelector(".count");
  root.hidden = false;
  let chosen = null;
  let shown = [];

  const everything = new Map(
    examples.map((example) => {
      const passages = example.candidates.map((c) => `${c.title} ${c.before}${c.span}${c.after}`);
      return [example, [example.text, example.answer, example.prediction ?? "", ...passages].join("\n").toLowerCase()];
    }),
  );
  const fill = (name, names) => {
    const select = form.elements[name];
    const values = [...new Set(examples.map((example) => String(example[name])))];
    if (values.length > 1) select.append(new Option("all", ""));
    values.forEach((value) => select.append(new Option(names[value] ?? value, value)));
  };
  fill("label", {});
  fill("seed", {});
  fill("kind", kinds);
  fill("when", times);

  const twin = (example) =>
    examples.find(
      (other) =>
        other.when !== example.when &&
        ["label", "seed", "kind", "text", "answer"].every((name) => other[name] === example[name]),
    );

  const withBlanks = (text) => {
    const node = element("p", "text");
    text.split("[MASK]").forEach((part, index) => {
      if (index) node.append(element("span", "blank", "[MASK]"));
      node.append(part);
    });
    return node;
  };

  const fact = (name, value) => {
    const node = document.createDocumentFragment();
    node.append(`${name} `, element("b", "", value), "\u2003 ");
    return node;
  };

  const passageCell = (candidate) => {
    const cell = element("td", "passage");
    if (candidate.is_null) {
      cell.append(element("span", "badge empty", "empty document"));
      return cell;
    }
    cell.append(element("b", "", candidate.title));
    if (candidate.is_gold) cell.append(element("span", "badge", "holds the fact"));
    cell.append(element("br"), candidate.before);
    if (candidate.span) cell.append(element("mark", "", candidate.span), candidate.after);
    return cell;
  };

  const candidateTable = (example) => {
    const table = element("table");
    const head = table.createTHead().insertRow();
    // A question has no empty document to compare with: the reader's number is that of the span it would answer with.
    const isQuestion = example.kind === "question";
    const names = isQuestion ? ["p(z|x)", "p(span|z,x)", "passage"] : ["p(z|x)", "p(y|z,x)", "utility", "passage"];
    names.forEach((name) => {
      const header = element("th", name === "passage" ? "" : "number", name);
      header.scope = "col";
      head.append(header);
    });
    const body = table.createTBody();
    const order = [...example.candidates].sort((a, b) => (b.probability ?? -1) - (a.probability ?? -1));
    order.forEach((candidate) => {
      const row = body.insertRow();
      const trust = element("td", "number", probability(candidate.probability));
      const bar = element("span", "bar");
      const filled = element("i");
      filled.style.width = `${100 * Math.min(1, candidate.probability ?? 0)}%`;
      bar.append(filled);
      trust.append(bar);
      const reader = candidate.reader === null ? null : Math.exp(Math.min(0, candidate.reader));
      row.append(trust, element("td", "number", probability(reader)));
      if (!isQuestion) row.append(element("td", "number", fixed(candidate.utility, 2)));
      row.append(passageCell(candidate));
    });
    makeSortable(table);
    return table;
  };

  const where = (example) =>
    [example.label, `seed ${example.seed}`, kinds[example.kind] ?? example.kind, example.moment].join(" \u00b7 ");

  const show = (example) => {
    chosen = example;
    detail.replaceChildren();
    if (!example) return;
    detail.append(element("p", "where", where(example)), withBlanks(example.text));
    const facts = element("p", "facts");
    facts.append(fact("answer", example.answer));
    if (example.prediction !== null) facts.append(fact("prediction", example.prediction));
    if (example.kind !== "question") {
      facts.append(fact("log p(y|x), empty document", fixed(example.null, 2)));
      facts.append(fact("log p(y|x), all candidates", fixed(example.marginal, 2)));
    }
    detail.append(facts);
    const other = twin(example);
    if (other) {
      const button = element("button", "turn", `Show the same ${other.moment}`);
      button.type = "button";
      button.addEventListener("click", () => {
        show(other);
        mark();
        detail.querySelector(".turn").focus();
      });
      detail.append(button);
    }
    const scroll = element("div", "scroll");
    scroll.append(candidateTable(example));
    detail.append(scroll);
  };

  // One stop of the Tab key for the whole list; arrow keys move inside it.
  const mark = () => {
    [...list.querySelectorAll("button")].forEach((button, index) => {
      const current = shown[index] === chosen;
      button.setAttribute("aria-current", String(current));
      button.tabIndex = current || (!shown.includes(chosen) && index === 0) ? 0 : -1;
    });
  };

  const update = () => {
    const wanted = (name) => form.elements[name].value;
    const words = wanted("search").toLowerCase().split(/\s+/).filter(Boolean);
    shown = examples.filter(
      (example) =>
        ["label", "seed", "kind", "when"].every((name) => !wanted(name) || String(example[name]) === wanted(name)) &&
        words.every((word) => everything.get(example).includes(word)),
    );
    count.textContent = `${shown.length} of ${examples.length} examples`;
    list.replaceChildren(
      ...shown.map((example) => {
        const item = element("li");
        const button = element("button");
        button.type = "button";
        button.append(element("span", "", example.text), element("small", "", where(example)));
        button.addEventListener("click", () => {
          show(example);
          mark();
        });
        item.append(button);
        return item;
      }),
    );
    if (!shown.includes(chosen)) show(shown[0] ?? null);
    mark();
  };

  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const place = buttons.indexOf(document.activeElement);
    const next = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (next === undefined || place < 0 || !buttons[next]) return;
    event.preventDefault();
    buttons[next].click();
    buttons[next].focus();
  });
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  // The trained model after pre-training is what most readers want to see first.
  for (const [name, value] of [["label", "realm"], ["when", "end"]]) {
    if ([...form.elements[name].options].some((option) => option.value === value)) form.elements[name].value = value;
  }
  update();
})();
