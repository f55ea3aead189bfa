"""Tables in, findings out: statistics, reports, comparisons, verdicts on anyone's runs, claims and the ledger."""
