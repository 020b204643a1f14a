"""The training recipe of step5-nano: corpus, tasks, tokenizer, trunk, quantisation, MTP, report.

Run `python -m models.recipe`. Every stage is a pure function of the interpreter's standard library
and a seed; the same recipe runs on a CPU (hours) and on a GPU (minutes).
"""
