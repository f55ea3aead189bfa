"use strict";
// On paper nothing can be unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("main details:not(#explorer details)").forEach((one) => { one.open = true; }));
// The explorer of worked examples: hides those that its form does not ask for.
(() => {
  const explorer = document.getElementById("explorer");
  if (!explorer) return;
  const form = explorer.querySelector("form");
  const examples = [...explorer.querySelectorAll("details")];
  const update = () => {
    const { words, ...choices } = Object.fromEntries(new FormData(form));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const example of examples) {
      const text = example.textContent.toLowerCase();
      example.hidden = !(
        Object.entries(choices).every(([name, value]) => ["", example.dataset[name]].includes(value)) &&
        wanted.every((word) => text.includes(word)));
    }
    const shown = examples.filter((example) => !example.hidden).length;
    explorer.querySelector(".count").textContent = `${shown} of ${examples.length} examples`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
})();
