"""Answers queries of claims.yaml from the reports of studies, and looks numbers up in a named source.

The query of a number is `[STUDY/]VARIANT METRIC [FIELD]`, `VARIANT - VARIANT METRIC [difference|size]` or `VARIANT
FIELD`. The query of a verdict is `VARIANT METRIC [FINDING]` or `VARIANT METRIC above|below VARIANT METRIC`. VARIANT may
name several variants as `A|B`; `*` names all except the baseline.
"""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.report.edited import check_results
from realm_lab.evidence.report.frames import column, metric_columns
from realm_lab.evidence.report.report_data import Report, load_report
from realm_lab.evidence.reproduce import expected_folder
from realm_lab.evidence.statistics.family import Finding, Kind
from realm_lab.evidence.statistics.intervals import summarise
from realm_lab.records.metrics import metric as metric_of

SOURCES = ("paper", "measured", "setting", "prose")
OF_RUNS = ("seeds", "first_seed", "last_seed", "collapsed", "count")
OF_VALUES = ("mean", "sd", "min", "max")
OF_FINDING = {
    "p": "corrected_p", "difference": "size", "size": "size", "bound": "bound", "tests": "tests",
    "detectable": "detectable_difference", "needed": "needed_seeds", "smallest_p": "smallest_p", "low": "low",
    "high": "high",
}  # fmt: skip
VERDICT_FIELDS = ("direction", "above", "below", *(kind.name.lower() for kind in Kind))
WORDS_OF_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
OPEN = {
    Kind.NOT_SIGNIFICANT, Kind.INCONCLUSIVE, Kind.EQUIVALENT, Kind.TOO_FEW_SEEDS, Kind.NOTHING_LEARNED,
}  # fmt: skip
# The words that a verdict with a known meaning may have; `a little` counts as one word.
KNOWN = frozenset(
    "a-little an a the is are was were be do does did can could no not neither nor significant significantly far much "
    "also and or any possible difference loss gain retrieval established equal equivalent ruled out better best worse "
    "worst higher highest lower lowest above below ahead more less fewer find finds answer answers score scores "
    "improve improves outperform outperforms beat beats help helps harm harms rise rises fall falls cost costs".split()
)
NEGATION = (
    r"(?:\b(?:no|not|never|neither|nor|none|nothing|nobody|nowhere|cannot|without|hardly|scarcely|barely|rarely|seldom"
    r"|little|few|far from|fails?|failed|(?:anything|nothing|everything|all) but)|n['’]t)\b"
)
BETWEEN = (  # words that may be between a verdict and the negation that reverses it
    r"(?:(?:\w+ly|is|are|was|were|be|been|being|do|does|did|has|have|had|can|could|will|would|a|an|the|to|at|all|any|in"
    r"|if|by|way|means|case|longer|more|near|ever|even|once|yet|so|as|much|found|seen|shown)\s+){0,5}"
)
BEFORE = re.compile(rf"{NEGATION}\s+{BETWEEN}\W*$", re.IGNORECASE)
AFTER = re.compile(r"^\W*\s(?:(?:in|on|for|at|by|with|of)\s+(?:no|none|neither|nobody)|nowhere|never)\b", re.IGNORECASE)
# Pattern -> the findings that a verdict with it asserts; the first pattern found in a verdict counts.
MEANINGS = {
    r"\bno\b|\bnot\b|\bneither\b|\bnor\b": OPEN,
    r"\bequal\b|equivalent|ruled out": {Kind.EQUIVALENT},
    r"\bbest\b|\bhighest\b|\bworst\b|\blowest\b": "extreme",
    r"better|improve|outperform|\bbeats?\b|ahead": "improves",
    r"worse|harm": "worsens",
    r"higher|above|\bmore\b|\brises?\b|gain": {Kind.HIGHER},
    r"lower|below|\bless\b|fewer|\bfalls?\b|costs?": {Kind.LOWER},
    r"significant": {Kind.HIGHER, Kind.LOWER},
}


def to_number(text: str) -> tuple[float, int]:
    """Return (number, its decimals) of a text: `79 %` is (0.79, 2), `eight` is (8, 0), `5e-2` is (0.05, 2)."""
    if text.casefold() in WORDS_OF_NUMBERS:
        return WORDS_OF_NUMBERS.index(text.casefold()), 0
    digits = text.casefold().replace("−", "-").replace(",", "").rstrip("%x ")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return (float(digits) / 100, decimals + 2) if text.endswith("%") else (float(digits), decimals)


def agrees(text: str, value: float) -> bool:
    """True if `value`, rounded to the decimals of `text`, is the number in `text`; a tie may be rounded up or down."""
    number, decimals = to_number(text)
    return abs(number - value) <= 0.5 * 10.0**-decimals + 1e-9


class Study(NamedTuple):
    """A report, and its findings by (metric, cell), computed from results.csv."""

    report: Report
    findings: dict[tuple[str, str], Finding]


class BoundResults:
    """The results of the studies of a project, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, Study] = {}

    def has(self, name: str) -> bool:
        """True for a study with results."""
        return (expected_folder(self._root, name) / "results.csv").is_file()

    def study(self, name: str) -> Study:
        """Return a study with its report and findings. UserError: no such report, or its files were edited."""
        if name not in self._read:
            folder = expected_folder(self._root, name)
            if not self.has(name):
                known = sorted({path.parent.name for path in (self._root / "reports").glob("**/results.csv")})
                raise UserError(f"no report of study '{name}'", remedy=suggestion(name, known))
            report = load_report(folder)
            check_results(self._root, folder)
            found = {(one.metric.name, cell.cell.name): cell.finding for one in report.compared for cell in one.cells}
            self._read[name] = Study(report, {key: finding for key, finding in found.items() if finding})
        return self._read[name]

    def cells(self, text: str, study: str) -> tuple[str, list[str]]:
        """Return (study, cells) of `text`, the first word of a query. `study`: the study if the text names none."""
        head, slash, rest = text.partition("/")
        name, cells = (head, rest) if slash else (study, text)
        if not name:
            raise UserError(f"'{text}' names no study", remedy="write STUDY/VARIANT")
        record = self.study(name).report.record
        known = [cell.name for cell in record.cells]
        if cells == "*":
            return name, [cell for cell in known if cell != record.baseline]
        for cell in cells.split("|"):
            if cell not in known:
                raise UserError(f"study {name} has no variant '{cell}'", remedy=suggestion(cell, known))
        return name, cells.split("|")

    def values(self, query: str, study: str) -> list[tuple[float, str]]:
        """Return (value, its name) for each cell that the query names. UserError: there is no such number."""
        words = query.split()
        if len(words) < 2:
            raise UserError(f"'{query}' is no query", remedy="write VARIANT METRIC [FIELD], or VARIANT FIELD")
        name, cells = self.cells(words[0], study)
        if words[1] == "-" and len(words) in (4, 5):
            other, *more = self.cells(f"{name}/{words[2]}", study)[1]
            if more:
                raise UserError(f"'{query}' subtracts several variants", remedy="name one after the minus")
            return [self._difference(name, cell, other, words[3], words[4:]) for cell in cells]
        if words[1:] == ["count"]:
            return [(len(cells), f"the number of variants {words[0]} of {name}")]
        if words[1] in OF_RUNS and len(words) == 2:
            return [(self._of_runs(name, cell, words[1]), f"{name}/{cell} {words[1]}") for cell in cells]
        field = words[2] if len(words) == 3 else "mean"
        if len(words) > 3 or field not in (*OF_VALUES, *OF_FINDING):
            raise UserError(f"'{query}' has no field '{field}'", remedy=suggestion(field, (*OF_VALUES, *OF_FINDING)))
        return [(self._of_metric(name, cell, words[1], field), f"{name}/{cell} {words[1]} {field}") for cell in cells]

    def by_seed(self, study: str, cell: str, metric: str) -> dict[int, float]:
        """Return seed -> value of a metric. UserError: the study has no such metric, or the cell no value of it."""
        results = self.study(study).report.results
        known = [name for name in results if results[name].dtype.kind in "biuf"]
        if metric not in known:
            raise UserError(f"study {study} has no metric '{metric}'", remedy=suggestion(metric, map(str, known)))
        if found := column(results, cell, metric):
            return found
        raise UserError(f"{study}/{cell} has no {metric}")

    def finding(self, study: str, cell: str, metric: str) -> Finding:
        """Return the finding of a cell against the baseline. UserError: the study does not compare the two."""
        if found := self.study(study).findings.get((metric, cell)):
            return found
        raise UserError(f"{study} does not compare {cell} with its baseline in {metric}")

    def _difference(self, study: str, cell: str, other: str, metric: str, field: list[str]) -> tuple[float, str]:
        mine, theirs = self.by_seed(study, cell, metric), self.by_seed(study, other, metric)
        found = summarise(mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys())
        if found is None or field not in ([], ["difference"], ["size"]):
            raise UserError(
                f"no such difference of {study}/{cell} and {other}", remedy="name variants with shared seeds, or `size`"
            )
        return abs(found.mean) if field == ["size"] else found.mean, f"{study}/{cell} - {other} {metric}"

    def _of_runs(self, study: str, cell: str, field: str) -> float:
        results = self.study(study).report.results
        mine = results[results["cell"] == cell]
        seeds = mine["seed"][mine["status"] == "COMPLETE"]
        known = {"seeds": len(seeds), "first_seed": seeds.min(), "last_seed": seeds.max()}
        return float(known[field] if field in known else mine["collapsed"].sum())

    def _of_metric(self, study: str, cell: str, metric: str, field: str) -> float:
        if field in OF_VALUES:
            found: Any = getattr(summarise(self.by_seed(study, cell, metric).values()), field)
        else:
            finding = self.finding(study, cell, metric)
            owner = {"low": finding.interval, "high": finding.interval, "smallest_p": finding.comparison}
            found = getattr(owner.get(field, finding), OF_FINDING[field], None)
        if found is None:
            raise UserError(f"{study}/{cell} has no {field} of {metric}")
        return abs(float(found)) if field == "size" else float(found)

    def check_source(self, where: str, numbers: list[str]) -> None:
        """Check that a source has the numbers, exact or rounded. `where`: `FILE` or `FILE, HEADING`; another source is
        not checked. UserError: the source lacks a number."""
        name, _, heading = where.partition(", ")
        if not (self._root / name).is_file():
            return
        found = self._numbers_of(name, heading)
        if missing := [number for number in numbers if not any(agrees(number, one) for one in found)]:
            raise UserError(f"{where} has no {', '.join(missing)}")

    @functools.cache  # noqa: B019  # the cache may live as long as the results
    def _numbers_of(self, name: str, heading: str) -> frozenset[float]:
        text = (self._root / name).read_text(encoding="utf-8")
        if heading:
            match = re.search(rf"^#+ {re.escape(heading)}.*?(?=^##? |\Z)", text, re.MULTILINE | re.DOTALL)
            if not match:
                raise UserError(f"{name} has no heading '{heading}'", remedy="name the start of a heading")
            text = match[0]
        number = r"(?<![\w.])-?(?:\d[\d,]*\.?\d*|\.\d+)(?: ?%)?(?:e-?\d+)?"  # 12.7e12 counts as 12.7, too
        words = re.findall(rf"{number}|\b[a-z]+\b", text.replace("−", "-"), re.IGNORECASE)
        known = [word for word in words if not word.isalpha() or word.casefold() in WORDS_OF_NUMBERS]
        known += [word.casefold().partition("e")[0] for word in known if not word.isalpha()]
        return frozenset(sign * to_number(word.rstrip(","))[0] for word in known for sign in (1, -1))

    def likely(self, text: str, studies: list[str]) -> list[str]:
        """Return at most three queries of these studies whose value rounds to the number `text`."""
        found = (query for study in studies for query, value in self._reported(study) if agrees(text, value))
        return [*itertools.islice(found, 3)]

    @functools.cache  # noqa: B019
    def _reported(self, study: str) -> list[tuple[str, float]]:
        """Return (query, value) of a study: means of the declared metrics, all p and differences, then other means."""
        report, findings = self.study(study)
        record, results = report.record, report.results
        means = results.groupby("cell")[metric_columns(results)].mean()
        cells = [cell.name for cell in record.cells]
        declared = [name for name in record.metrics if name in means]
        found = [(f"{study}/{cell} {name}", means[name].get(cell)) for name in declared for cell in cells]
        for (name, cell), finding in findings.items():
            found += [
                (f"{study}/{cell} {name} {one}", getattr(finding, OF_FINDING[one])) for one in ("p", "difference")
            ]
        others = [name for name in means if name not in declared]
        found += [(f"{study}/{cell} {name}", means[name].get(cell)) for name in others for cell in cells]
        return [(query, float(value)) for query, value in found if value is not None and value == value]


def fits(results: BoundResults, query: str, study: str, verdict: str, before: str = "", after: str = "") -> str:
    """Compare a verdict with the results; returns the contradiction, "" if there is none. before, after: the text
    around the verdict. UserError: no such finding, or a verdict without a known meaning or with a negation next to it.
    """
    words = query.split()
    if turned := BEFORE.search(before) or AFTER.search(after):
        said = " ".join(turned[0].split())
        raise UserError(f"'{verdict}' stands next to '{said}'", remedy="put all of these words into the braces")
    if len(words) == 5 and words[2] in ("above", "below"):
        first, second = (results.values(" ".join(two), study) for two in (words[:2], words[3:]))
        sign = 1 if words[2] == "above" else -1
        pairs = [(one, two) for one in first for two in second if (one[0] - two[0]) * sign <= 0]
        return "; ".join(f"{one[1]} is {one[0]:.4g}, {two[1]} {two[0]:.4g}" for one, two in pairs)
    if len(words) not in (2, 3) or (len(words) == 3 and words[2] not in VERDICT_FIELDS):
        raise UserError(f"'{query}' is no query of a verdict", remedy="write VARIANT METRIC, or VARIANT METRIC FINDING")
    name, cells = results.cells(words[0], study)
    field = words[2] if len(words) == 3 else ""
    said = re.sub(r"\ba little\b", "a-little", verdict.casefold())
    is_known = KNOWN.issuperset(re.findall(r"[\w'’-]+", said))
    found_meanings = (one for pattern, one in MEANINGS.items() if re.search(pattern, verdict, re.IGNORECASE))
    meaning = next(found_meanings, None) if is_known else None
    if field and field != "direction":
        meaning = {Kind[field.upper()]}
        if not meaning <= OPEN and re.search(NEGATION, said):
            raise UserError(f"'{verdict}' denies a difference, and is bound to a significant one")
    if meaning is None:
        raise UserError(f"'{verdict}' is no known verdict", remedy="add the finding, for example VARIANT METRIC lower")
    if meaning == "extreme":
        return _extreme(results, name, cells, words[1], verdict)
    wrong = []
    for cell in cells:
        found = results.finding(name, cell, words[1])
        kind, way = found.kind, found.direction if field == "direction" else found.kind
        better = {"up": Kind.HIGHER, "down": Kind.LOWER}.get(found.metric.better)
        if meaning == "improves" or meaning == "worsens":
            is_right = way in (Kind.HIGHER, Kind.LOWER) and better is not None
            is_right = is_right and (way is better) is (meaning == "improves")
        else:
            is_right = way in meaning
        if not is_right:
            what = f"{way or 'not the same in all seeds'}" if field == "direction" else kind
            wrong.append(f"{name}/{cell} {words[1]} is {what} (p = {found.corrected_p:.3g})")
    return "; ".join(wrong)


def _extreme(results: BoundResults, study: str, cells: list[str], metric: str, verdict: str) -> str:
    """Check `best` or `worst`: the cell must have the extreme mean, and differ significantly from the baseline. If the
    cell is the baseline, all other cells must differ from it. Returns the contradiction, "" if there is none."""
    report, findings = results.study(study)
    means = {cell.name: summarise(column(report.results, cell.name, metric).values()) for cell in report.record.cells}
    known = {one: found.mean for one, found in means.items() if found}
    kinds = {cell: finding.kind for (name, cell), finding in findings.items() if name == metric}
    top = "highest|worst" if metric_of(metric).better == "down" else "highest|best"
    is_top = re.search(top, verdict, re.IGNORECASE) is not None
    up, down = (Kind.HIGHER, Kind.LOWER) if is_top else (Kind.LOWER, Kind.HIGHER)
    for cell in cells:
        is_apart = all(kinds.get(one) == down for one in known if one != cell)
        is_apart |= kinds.get(cell) == up
        if not is_apart or known.get(cell) != (max if is_top else min)(known.values()):
            return f"{study}/{cell} {metric} is not significantly the {verdict}"
    return ""
