"""Results of benchmark runs: raw records, manifest, summary, report; and what is done with them later.

One run = one directory. `docs/results.md` says what each file holds. Nothing here talks to an engine.
"""
