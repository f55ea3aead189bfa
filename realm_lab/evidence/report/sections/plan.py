"""The plan of a study in the ledger, and its deviations."""

from __future__ import annotations

import functools
from typing import Any

from realm_lab.evidence.report.section import ReportSection


class Plan(ReportSection):
    """The time at which the design was noted in the ledger, and changes since; empty if the data has no plan."""

    name = "plan"

    def data(self) -> dict[str, Any]:
        plan = self.report.data["plan"]
        return {"plan": plan} if plan else {}

    @functools.cached_property
    def sentence(self) -> str:
        plan = self.report.data["plan"]
        if not plan:
            return ""
        if not plan["line"]:
            return "Plan: none was noted in a ledger, so nothing shows that the design was chosen before the results."
        complete, deviations = plan["complete"], "; ".join(plan["deviations"])
        noted = f"when {complete} runs had results already" if complete else "before the first run"
        kept = f"deviates after results were seen: {deviations}" if deviations else "as planned"
        return f"Plan: line {plan['line']} of the ledger ({plan['hash']}), noted {noted}; {kept}."
