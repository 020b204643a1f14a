"""The small checkpoint that ships with fourstep (step5-nano) and the recipe that trained it.

Holds data and training code only: nothing in graphs, runtime or server imports from here.
"""
