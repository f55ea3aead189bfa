"""Numbers and single findings as text, the same in every table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from realm_lab.evidence.statistics.calibration import Calibration
from realm_lab.evidence.statistics.family import Finding, Kind
from realm_lab.evidence.statistics.intervals import FEWEST_FOR_SPREAD, Interval, Summary
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS
from realm_lab.evidence.statistics.power import FEWEST_FOR_PROJECTION, MOST_SEEDS
from realm_lab.evidence.statistics.robust import Estimate

NOTHING = "–"
MINUS = "−"
FALSE_ALARMS = (
    "With differences as skewed as these but without any effect, {rate} of simulated studies have a significant "
    "difference somewhere (standard error {error}; nominal 5 %)."
)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals and a true minus sign; a dash for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:.{digits}f}"
    return (text.removeprefix("-") if float(text) == 0.0 else text).replace("-", MINUS)


def p_value(value: float | None) -> str:
    """p with three decimals; "< 0.001" where these would be 0.000."""
    return "< 0.001" if value is not None and value < 0.0005 else number(value)


def percent(share: float | None) -> str:
    """A share as "7.2 %"; a dash for none."""
    return NOTHING if share is None else f"{number(100 * share, 1)} %"


def signed(value: float | None, digits: int = 3) -> str:
    """Format a number with its sign and a true minus; zero has no sign."""
    text = number(value, digits)
    return text if text[0] in (MINUS, NOTHING) or not text.strip("0.") else f"+{text}"


def mean_sd(found: Summary | None, digits: int = 3, fewest: int = FEWEST_FOR_SPREAD) -> str:
    """ "0.961 ± 0.014"; only the mean for fewer values than `fewest`; a dash for no value."""
    if found is None:
        return NOTHING
    has_spread = found.sd is not None and found.n >= fewest
    return number(found.mean, digits) + (f" ± {number(found.sd, digits)}" if has_spread else "")


def interval(found: Interval | None, digits: int = 3) -> str:
    """Both ends with their signs; a dash for none."""
    if found is None:
        return NOTHING
    return f"{signed(found.low, digits)} to {signed(found.high, digits)}"


def estimate(found: Estimate | None, digits: int = 3) -> str:
    """A value and its interval; a dash for none."""
    return NOTHING if found is None else f"{number(found.value, digits)} ({span(found.interval, digits)})"


def span(found: Interval, digits: int) -> str:
    """Both ends without signs for positive numbers."""
    return f"{number(found.low, digits)} to {number(found.high, digits)}"


def in_short(finding: Finding) -> str:
    """A finding in a few words, for a table."""
    seeds, way = finding.seeds, finding.direction
    skewed = ", skewed" * (finding.is_skewed and finding.is_significant)
    if finding.kind is Kind.ONE_PAIR:
        return f"{way} in one pair of models"
    if finding.kind is Kind.TOO_FEW_SEEDS:
        if seeds == 1:
            return "one seed"
        return f"{way} in {'both' if seeds == 2 else f'all {seeds}'} seeds" if way else str(finding.kind)
    if finding.is_significant and finding.equivalent_within is not None:
        return f"{finding.kind}, within ±{bound(finding)}{skewed}"
    return f"{finding.kind}{skewed}"


def bound(finding: Finding) -> str:
    """The largest difference that does not matter, with its unit; "" if the study declares none."""
    return "" if finding.bound is None else f"{finding.bound:g} {finding.metric.unit}".strip()


def p_text(finding: Finding) -> str:
    """p after correction, and the smallest that this many seeds can give."""
    return f"{p_value(finding.corrected_p)} ({p_value(finding.comparison.smallest_p)})"


def difference(finding: Finding) -> str:
    """The mean difference with its 95 % interval, `−0.558 [−0.848, −0.268]`; no interval for fewer than three seeds."""
    digits, found = finding.metric.digits, finding.interval
    shown = signed(finding.size, digits)
    return shown if found is None else f"{shown} [{signed(found.low, digits)}, {signed(found.high, digits)}]"


def detectable(finding: Finding) -> str:
    """The minimum detectable difference."""
    if finding.seeds < FEWEST_SEEDS:
        return NOTHING
    found = finding.detectable_difference
    return "none possible" if found is None else number(found, finding.metric.digits)


def needed(finding: Finding) -> str:
    """The number of seeds that the observed difference needs."""
    if finding.seeds < FEWEST_FOR_PROJECTION:
        return NOTHING
    return f"> {MOST_SEEDS}" if finding.needed_seeds is None else str(finding.needed_seeds)


def details(finding: Finding | None, digits: int, paired: str) -> dict[str, str]:
    """Power, equivalence and robust estimates by their headings. `paired`: the word for the pairs, such as seeds."""
    return {
        "minimum detectable difference": detectable(finding) if finding else NOTHING,
        f"{paired} needed": needed(finding) if finding else NOTHING,
        "90 % interval": interval(finding.equivalence_interval if finding and finding.bound else None, digits),
        "interquartile mean (95 %)": estimate(finding and finding.interquartile, digits),
        "P(higher) (95 %)": estimate(finding and finding.probability_higher, 2),
    }


def without_empty(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Rows without the columns that are a dash in all of them."""
    known = {key for row in rows for key, value in row.items() if value != NOTHING}
    return [{key: value for key, value in row.items() if key in known} for row in rows]


def false_alarms(calibration: Calibration) -> str:
    """The rate of the whole family in one sentence."""
    rate, error = calibration.any
    return FALSE_ALARMS.format(rate=percent(rate), error=percent(error))
