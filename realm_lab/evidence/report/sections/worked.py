"""Masked sentences step by step, as in Table 3 of the paper."""

from __future__ import annotations

from realm_lab.evidence.report.section import ReportSection


class Worked(ReportSection):
    """Three examples from the runs (examples.py chooses them)."""

    name = "worked"
    template = """<details markdown="1">
<summary>Worked examples</summary>

Three of the masked sentences that were kept for the explorer, not the three best: those with the largest, the median \
and the smallest gain of the marginal likelihood over the null document. As in Table 3 of the paper: (a) no \
retrieval, (b) each document, (c) the marginal over all candidates.

{% for example in section.report.data.worked %}
**{{ example.rank | capitalize }} gain, {{ section.report.record.cell(example.cell).title }}, seed {{ example.seed \
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

</details>
"""

    @property
    def applies(self) -> bool:
        """True if the study has examples."""
        return bool(self.report.data["worked"])
