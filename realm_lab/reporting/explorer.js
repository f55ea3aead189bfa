"use strict";
// The retrieval explorer. Its data is packed as explorer.py says: texts and passages by their place in a table.
(() => {
  const { element, MINUS, makeSortable } = window.realmReport;
  const source = document.getElementById("explorer-data");
  if (!source) return;
  const { studies, texts, passages, examples: rows, kinds, when: times } = JSON.parse(source.textContent);
  const fixed = (value, digits) => (value === null ? "\u2013" : value.toFixed(digits).replace("-", MINUS));
  const probability = (value) => {
    if (value === null) return "\u2013";
    return value >= 0.0005 || value === 0 ? value.toFixed(3) : value.toExponential(1).replace("-", MINUS);
  };
  const textAt = (place) => (place < 0 ? null : texts[place]);
  const examples = rows.map((row) => {
    const [study, cell, seed, kind, when, moment, text, answer, prediction, empty, marginal, further, rest, candidates] = row;
    const [name, title] = studies[study].cells[cell];
    return {
      study: studies[study].name, cell: name, title, seed: String(seed), kind: textAt(kind), when: textAt(when),
      moment: textAt(moment), text: textAt(text), answer: textAt(answer), prediction: textAt(prediction),
      empty, marginal, further, rest, candidates, several: studies.length > 1,
    };
  });
  const root = document.querySelector(".explorer");
  const form = root.querySelector("form");
  const list = root.querySelector(".examples");
  const detail = root.querySelector(".detail");
  const count = root.querySelector(".count");
  root.hidden = false;
  let chosen = null;
  let shown = [];

  // What the text filter looks into is put together when it is first asked for.
  const lowered = passages.map(() => null);
  const passageText = (place) => {
    if (place < 0) return "";
    lowered[place] ??= passages[place].join(" ").toLowerCase();
    return lowered[place];
  };
  const holds = (example, word) =>
    [example.text, example.answer, example.prediction ?? ""].some((text) => text.toLowerCase().includes(word)) ||
    example.candidates.some((candidate) => passageText(candidate[0]).includes(word));

  const FIELDS = ["study", "cell", "seed", "kind", "when"];
  const names = { kind: kinds, when: times, study: new Map(studies.map((study) => [study.name, study.title])) };
  const nameOf = (field, value) => (field === "study" ? value : (names[field]?.[value] ?? value));
  const fill = (field, among) => {
    const select = form.elements[field];
    const before = select.value;
    const titles = new Map(among.map((e) => [e[field], field === "cell" ? e.title : nameOf(field, e[field])]));
    select.replaceChildren();
    if (titles.size > 1) select.append(new Option("all", ""));
    titles.forEach((title, value) => select.append(new Option(title, value)));
    if ([...select.options].some((option) => option.value === before)) select.value = before;
  };
  // The cells and seeds on offer are those of the chosen study.
  const fillStudy = () => {
    const study = form.elements.study.value;
    const among = examples.filter((example) => !study || example.study === study);
    fill("cell", among);
    fill("seed", among);
  };
  FIELDS.forEach((field) => fill(field, examples));
  if (studies.length < 2) form.elements.study.closest("label").hidden = true;

  const SAME = ["study", "cell", "seed", "kind", "text", "answer"];
  const twin = (example) =>
    examples.find((other) => other.when !== example.when && SAME.every((field) => other[field] === example[field]));

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

  const passageCell = ([place, , , , start, end, isGold]) => {
    const cell = element("td", "passage");
    if (place < 0) {
      cell.append(element("span", "badge empty", "empty document"));
      return cell;
    }
    const [title, body] = passages[place];
    cell.append(element("b", "", title));
    if (isGold) cell.append(element("span", "badge", "holds the fact"));
    cell.append(element("br"), body.slice(0, start));
    if (end > start) cell.append(element("mark", "", body.slice(start, end)));
    cell.append(body.slice(end));
    return cell;
  };

  const candidateTable = (example) => {
    const table = element("table");
    const head = table.createTHead().insertRow();
    // A question has no empty document to compare with: the reader's number is that of the span it would answer with.
    const isQuestion = example.kind === "question";
    const columns = isQuestion ? ["p(z|x)", "p(span|z,x)", "passage"] : ["p(z|x)", "p(y|z,x)", "utility", "passage"];
    columns.forEach((name) => {
      const header = element("th", name === "passage" ? "" : "number", name);
      header.scope = "col";
      head.append(header);
    });
    const body = table.createTBody();
    example.candidates.forEach((candidate) => {
      const [, trusted, reader, utility] = candidate;
      const row = body.insertRow();
      const trust = element("td", "number", probability(trusted));
      const bar = element("span", "bar");
      const filled = element("i");
      filled.style.width = `${100 * Math.min(1, trusted ?? 0)}%`;
      bar.append(filled);
      trust.append(bar);
      row.append(trust, element("td", "number", probability(reader === null ? null : Math.exp(Math.min(0, reader)))));
      if (!isQuestion) row.append(element("td", "number", fixed(utility, 2)));
      row.append(passageCell(candidate));
    });
    makeSortable(table);
    return table;
  };

  const where = (example) =>
    [
      ...(example.several ? [example.study] : []),
      example.title,
      `seed ${example.seed}`,
      kinds[example.kind] ?? example.kind,
      example.moment,
    ].join(" \u00b7 ");

  const show = (example) => {
    chosen = example;
    detail.replaceChildren();
    if (!example) return;
    detail.append(element("p", "where", where(example)), withBlanks(example.text));
    const facts = element("p", "facts");
    facts.append(fact("answer", example.answer));
    if (example.prediction !== null) facts.append(fact("prediction", example.prediction));
    if (example.kind !== "question") {
      facts.append(fact("log p(y|x), empty document", fixed(example.empty, 2)));
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
    if (example.further) {
      detail.append(element("p", "note", `${example.further} further candidates, p(z|x) ${probability(example.rest)} together.`));
    }
  };

  // One stop of the Tab key for the whole list; arrow keys move inside it.
  const mark = () => {
    [...list.querySelectorAll("button")].forEach((button, index) => {
      const current = shown[index] === chosen;
      button.setAttribute("aria-current", String(current));
      button.tabIndex = current || (!shown.includes(chosen) && index === 0) ? 0 : -1;
    });
  };

  const MOST_LISTED = 300;
  const update = () => {
    const wanted = Object.fromEntries(FIELDS.map((field) => [field, form.elements[field].value]));
    const words = form.elements.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = examples.filter(
      (example) =>
        FIELDS.every((field) => !wanted[field] || example[field] === wanted[field]) &&
        words.every((word) => holds(example, word)),
    );
    shown = found.slice(0, MOST_LISTED);
    const listed = found.length > MOST_LISTED ? `; the first ${MOST_LISTED} are listed` : "";
    count.textContent = `${found.length} of ${examples.length} examples${listed}`;
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
  form.addEventListener("input", (event) => {
    if (event.target.name === "study") fillStudy();
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  // The trained model after pre-training is what most readers want to see first.
  const prefer = (field, value) => {
    if ([...form.elements[field].options].some((option) => option.value === value)) form.elements[field].value = value;
  };
  prefer("study", studies[0]?.name ?? "");
  fillStudy();
  prefer("cell", "realm");
  prefer("when", "end");
  update();
})();
