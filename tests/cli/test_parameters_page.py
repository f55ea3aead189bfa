"""docs/parameters.md has everything about every parameter, and is not stale."""

import re
from pathlib import Path

from docs.parameters_page import render_reference
from realm_lab.engine.params.load import PRESETS, flatten, is_section, parameter_fields, preset_values, resolve
from realm_lab.engine.params.params_yaml import renewed_params_yaml

PAGE_TEXT = " ".join(render_reference({}).split())
PARAMS = {name: resolve(preset_values(name)) for name in PRESETS}
RESOLVED = {name: flatten(params) | {"system_options": params.system_options} for name, params in PARAMS.items()}


def test_params_yaml_is_up_to_date(repository: Path) -> None:
    written = (repository / "params.yaml").read_text(encoding="utf-8")
    assert written == renewed_params_yaml(written), "run `make pages`"


def test_every_parameter_has_a_row_with_an_anchor_its_meaning_and_its_values() -> None:
    rows = {
        anchor: line for line in render_reference({}).splitlines() for anchor in re.findall(r'^\| <a id="(.*?)">', line)
    }
    assert sorted(rows) == sorted(name for name in parameter_fields() if not is_section(name))
    for name, row in rows.items():
        description = " ".join((parameter_fields()[name].description or "").split())
        assert description, f"{name} has no docstring"
        _, shown, *explanation, default, _ = re.split(r"(?<!\\)\|", row)
        assert f"`{name}`" in shown
        section, _, last = name.rpartition(".")
        explained = name
        if not explanation:  # it is in the first section of this kind, which this section names
            linked = re.search(
                rf"^## {re.escape(section)}\n\nAs \[`(.*?)`\]\(#(.*?)\)", render_reference({}), re.MULTILINE
            )
            assert linked, f"nothing explains {name}"
            assert linked[2] in rows
            explained = f"{linked[1]}.{last}"
            explanation = re.split(r"(?<!\\)\|", rows[explained])[2:4]
        meaning, values = explanation
        assert values.strip()
        more = re.findall(rf"- `{re.escape(explained)}`: (.*?)(?= - `|$| </details>)", PAGE_TEXT)
        assert " ".join([meaning.strip().replace("\\|", "|"), *more]) == description
        if name == "system_options":
            continue
        paper, *others = default.strip().split(" · ")
        assert re.fullmatch(r"\*\*.+\*\*", paper), f"{name} has no default"
        differ = {preset for preset, flat in RESOLVED.items() if flat[name] != RESOLVED["paper"][name]}
        named = [preset for other in others for preset in other.split()[0].split("/")]
        assert sorted(named) == (sorted(differ) if name != "preset" else [])
