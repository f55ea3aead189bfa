"""Drawings put into a page: colours as CSS variables, ids of their own, letters shared by all of its drawings."""

from __future__ import annotations

import re

from realm_lab.reporting.palette import THEMED

DECIMALS = 2  # of coordinates; the unit is a 72nd of an inch
NUMBER = re.compile(r"-?\d+\.\d{3,}")
LETTER = re.compile(r'<path id="(DejaVu[^"]*)" d="([^"]*)" transform="scale\(([^)]*)\)"/>')
REFERENCE = re.compile(r'(?:xlink:href="#|url\(#)([^")]+)')


class Drawings:
    """The drawings of one page. Texts are outlines: each letter's is kept once, in `letters()`, at the page's end."""

    def __init__(self) -> None:
        self._letters: dict[tuple[str, str], str] = {}  # (outline, scale) -> id
        self._drawn = 0

    def inline(self, svg: str) -> str:
        """The SVG element of a drawing as matplotlib writes it, without what a page does not need."""
        self._drawn += 1
        prefix = f"d{self._drawn}-"
        svg = svg[svg.index("<svg") :]
        # The style is the same in all of them: page.css has it.
        svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
        mine = {name: self._letter(outline, scale) for name, outline, scale in LETTER.findall(svg)}
        svg = LETTER.sub("", svg)
        known = {*REFERENCE.findall(svg)} - mine.keys()
        svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{prefix}{found[1]}"' if found[1] in known else "", svg)
        svg = re.sub(r"url\(#", rf"url(#{prefix}", svg)
        svg = re.sub(r'xlink:href="#([^"]*)"', lambda found: f'href="#{mine.get(found[1], prefix + found[1])}"', svg)
        svg = re.sub(r' transform="translate\(([-\d.]+) 0\)"/>', r' x="\1"/>', svg)
        svg = NUMBER.sub(_shorter, svg)
        for colour, variable in THEMED.items():
            svg = svg.replace(colour, f"var({variable})")
        svg = re.sub(r"\s*\n\s*", " ", svg)
        svg = re.sub(r"(?<=>) (?=<)|(?<=\") (?=/?>)|(?<=[:;,]) (?=[\w#])|(?<=[\dz]) (?=\")", "", svg)
        while (shorter := re.sub(r"<g>(<(?:use|path)\b[^>]*/>)</g>|<g></g>|<defs></defs>", r"\1", svg)) != svg:
            svg = shorter
        head, body = svg.split(">", 1)
        box = re.search(r'viewBox="[^"]*"', head)
        return f"<svg {box[0] if box else ''}>{body}".strip()

    def letters(self) -> str:
        """What the drawings refer to; empty where there is none."""
        if not self._letters:
            return ""
        outlines = "".join(
            f'<path id="{name}" d="{outline}" transform="scale({scale})"/>'
            for (outline, scale), name in self._letters.items()
        )
        return f'<svg class="letters" width="0" height="0" aria-hidden="true"><defs>{outlines}</defs></svg>'

    def _letter(self, outline: str, scale: str) -> str:
        key = (re.sub(r"\s*\n\s*", " ", outline).strip(), scale)
        return self._letters.setdefault(key, f"l{len(self._letters)}")


def _shorter(found: re.Match[str]) -> str:
    """A number with what can be seen of it: two decimals, more where it is a scale."""
    value = float(found[0])
    return f"{value:.{DECIMALS if abs(value) >= 1 else DECIMALS + 2}f}".rstrip("0").rstrip(".")
