"""The command `plan`: time and cost of a run, by the measured speeds of this machine or those of a known GPU."""

from __future__ import annotations

import argparse
import json

from realm_lab.cli.flags import Add, add_json, add_parameters, params_of, positive
from realm_lab.errors import UserError
from realm_lab.records.files import print_json


def add_plan(add: Add) -> None:
    """Add `plan` to the command line."""
    summary = "estimate the time and cost of a run, refresh time, staleness and memory at any size"
    plan = add("tools", "plan", _run_plan, summary)
    add_parameters(plan)
    text = "measure this machine with the configured model and write ROOT/runs/bench.json, which later plans read"
    plan.add_argument("--measure", action="store_true", help=text)
    text = "size of the corpus (default: the prepared corpus's)"
    plan.add_argument("--passages", type=positive, metavar="N", help=text)
    text = "a known GPU, for example H100 (default: this machine as it was measured)"
    plan.add_argument("--device", metavar="NAME", help=text)
    text = "number of devices used for training and search (default: 1)"
    plan.add_argument("--trainers", type=positive, default=1, metavar="N", help=text)
    text = "number of devices that embed the corpus for a refresh (default: 1)"
    plan.add_argument("--builders", type=positive, default=1, metavar="N", help=text)
    plan.add_argument("--price", type=float, metavar="AMOUNT", help="price per device-hour")
    add_json(plan)


def _run_plan(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.contrib.planner import bench, plan

    request = plan.Request(**{name: getattr(options, name) for name in plan.Request._fields})
    if not options.measure:
        made = plan.make_plan(params, options.root, request)
        if options.json:
            print_json(made)
        else:
            plan.show_plan(made)
        return
    if request != plan.Request():
        raise UserError("plan --measure measures, and plans nothing; leave out the options of a plan")
    path = bench.default_path(options.root)
    found = bench.measure(params, options.root)
    bench.write_calibration(path, found)
    if options.json:
        print_json(json.loads(path.read_text(encoding="utf-8")))
    else:
        bench.show_calibration(found, path)
