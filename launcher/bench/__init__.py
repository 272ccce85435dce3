"""`sparkctl bench`: sends requests, times the answers, and keeps every raw record.

Results (schema, summary, report, comparison) are launcher.results; nothing here computes a figure for print.
"""
