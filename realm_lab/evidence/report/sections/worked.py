"""Masked sentences step by step, as in Table 3 of the paper."""

from __future__ import annotations

from typing import Any

from realm_lab.evidence.report.examples import load_examples, table_3
from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.section import ReportSection


class Worked(ReportSection):
    """Three examples from the runs (examples.py chooses them)."""

    name = "worked"
    heading = "Worked examples"
    template = """{% if report.data.worked %}
Three of the masked sentences that were kept for the explorer, not the three best: those with the largest, the \
median and the smallest gain of the marginal likelihood over the null document. As in Table 3 of the paper: (a) no \
retrieval, (b) each document, (c) the marginal over all candidates.

{% for example in report.data.worked %}
**{{ example.rank | capitalize }} gain, {{ report.record.cell(example.cell).title }}, seed {{ example.seed \
}}: {{ example.gain | number(2) }} nats**

> {{ example.text }}

p(y = {{ example.answer }})

| case | document z | p(z\\|x) | p(y\\|z,x) |
| --- | --- | ---: | ---: |
| (a) no retrieval | | | {{ example.null | likelihood }} |
{% for one in example.candidates if not one.is_null %}
| (b) one document | {% if one.picture %}an image{% else %}{{ one.title ~ ": " ~ one.before ~ one.span ~ one.after \
}}{% endif %}{% if one.is_gold %} (the passage with the fact){% endif %} | {{ one.probability | probability }} | {{ \
one.reader | likelihood }} |
{% endfor %}
{% for one in example.candidates if one.is_null %}
| | the null document as a candidate | {{ one.probability | probability }} | {{ one.reader | likelihood }} |
{% endfor %}
| (c) marginal | | | {{ example.marginal | likelihood }} |

{% endfor %}
{% endif %}
"""

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Return the examples as the field `worked`."""
        return {"worked": table_3(study, load_examples(study))}
