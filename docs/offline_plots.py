"""`dvc plots show` with the plotting library (Vega) in the page, which DVC's own page loads from the network."""

import subprocess
from pathlib import Path

import vl_convert

TEMPLATE = Path(".dvc/tmp/plots.html")
library = vl_convert.javascript_bundle()
TEMPLATE.parent.mkdir(parents=True, exist_ok=True)
TEMPLATE.write_text(
    f'<!DOCTYPE html><meta charset="utf-8"><title>Curves</title><script>{library}</script>{{plot_divs}}',
    encoding="utf-8",
)
subprocess.run(["dvc", "plots", "show", "--html-template", str(TEMPLATE)], check=True)
