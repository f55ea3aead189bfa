"""The fields that commands print with --json, for docs/cli.md; a test compares them with the output."""

RUN_FIELDS = "`study`, `cell`, `seed`, `run_key`, `state` and `overrides` (parameter -> value)"
EMBEDDINGS = (
    "`folder`, `key`, `corpus` and `embedder` (digests), `precision`, `passages`, `dimension` (numbers of each) and "
    "`mebibytes`"
)
ANSWERED = (
    "`system`, `question`, `answer`, `near_uniform` (the best p(z|x) is below 1.5/k: do not trust the retriever) "
    "and `candidates`, each with `passage` (null: the null document), `span` "
    "(characters of the body), `answer`, `probability` p(z|x), `reader_probability` p(y|z,x) and `utility` in nats"
)
JSON_FIELDS = {
    "prepare": (
        "with --count, a list of `name`, `format`, `counts`, `dropped` (reason -> number) and `first_dropped` (reason "
        "-> id)"
    ),
    "evaluate": (
        "with --predictions: `questions`, each score, and the ids of problems (`missing`, `without_answer`, "
        "`without_passages`, `contradictory`); with --corpus: `folder` and the scores"
    ),
    "sweep": (
        f"a list of runs with {RUN_FIELDS}; with --power: `study`, `pilot`, `tests`, `power` and its standard "
        "`power_error`, `until`, `comparisons` (`metric`, `cell`, `deltas`, `spread`, `spread_seeds`, `delta`, "
        "`enough`: the fewest seeds that detect `delta`, `detectable`: seeds -> `difference` and `seeds` taken) and "
        "`costs` (`seeds`, `runs`, `device_hours`, `left`, and with a rule those `expected`). For a search: as "
        "`trials.json`; with --dry-run the space and the states of trials"
    ),
    "status": (
        "for a study `study`, `counts` (state -> number), `other_code` (a warning) and `runs`. For a run: stage -> "
        "`state`, `error`, `flags` and `metrics`, the rows of its metrics.jsonl. Without a name: a list of `study`, "
        "`counts`, `question` and perhaps `error`. With --runs: a list of `run`, `state` and `studies` "
        "(STUDY/VARIANT). With --ledger: `lines`, `problems` and `deviations` by study"
    ),
    "compare": "as summary.json of a study: `cells`, `comparisons` and more",
    "reproduce": (
        "a list of `study`, `stale` (differences of the report from its data), `run_again` (null, `complete` or "
        "`failed`) and `checks`: `cell`, `metric`, `expected`, `found`, `seeds`, `p`, `state`"
    ),
    "ask": (
        f"{ANSWERED}. For a sentence with a [MASK]: `sentence`, `answer`, `wordpieces`, `marginal` p(y|x), "
        "`marginal_log_probability`, `without` p(y|null,x) and `candidates`"
    ),
    "gradients": (
        "`stage`, `sentences`, `passages`, `exact_gflop`, `left_out` (estimate -> why) and `estimates`: `name`, "
        "`cosine`, `bias`, `variance`, `error`, `weights_cosine`, `weights_bias` and `gflop`"
    ),
    "gc": "a list of `folder`, `mebibytes` and `deleted`",
    "mirror": (
        "`uri`, `states` (state -> number of runs), `studies`, `created`, `updated`, `recreated`, `removed`, `points`, "
        "`problems`, `links` (study -> path) and `registered`"
    ),
    "verdict": (
        "`cell`, `pair`, `baseline`, `cluster`, `control`, `decision` (not worse, worse or undecided), `calibration`, "
        "`metrics` (metric -> variant -> its finding), `left_out` (`run` and `why`) and `other_status` (column "
        "-> its words for runs that did not finish); with --calibrate: `study`, `false_alarms` and "
        "its standard `error`, `tests`, `seeds` and `comparisons`, each with its own rate"
    ),
    "claims": "`files`, `bound` and `problems`, each with `path`, `line`, `says`, `found` and `remedy`",
    "index build": EMBEDDINGS,
    "index list": f"a list of {EMBEDDINGS}",
    "mine": "`file`, `questions` and `without_positive`",
    "plan": (
        "all numbers of the plan, with `seconds`, `memory_bytes`, `stage_device_hours` and `assumptions`; with "
        "--measure as runs/bench.json: `device`, `host`, `torch`, `date`, `model`, `lengths`, `memory_bytes`, `speeds`"
    ),
    "doctor": "a list of `state` (OK, note, missing or wrong), `subject`, `found` and `remedy`",
}
EXIT_CODES = {
    "0": "done",
    "1": (
        "a check failed (`claims`, `doctor`, `prepare --count`, `status --ledger`, `reproduce`, `verdict --gate`: "
        "worse), a run failed or is not complete, or `mirror` could not show a run"
    ),
    "2": "an error; one line on stderr names file, line or parameter, and the remedy",
    "3": "`verdict --gate`: undecided",
    "70": "an unexpected error",
    "129, 130, 143": "stopped by SIGHUP, Ctrl-C or SIGTERM; the same command goes on",
    "141": "the reader of the output went away",
}
