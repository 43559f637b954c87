"""From the configuration of a model to the kernels that serve its layers.

`document` reads the file, `known` says what a type of model implies, `config` takes the facts of
attention from both, `recommend` finds variants and budgets for them, and `text` says it all.
"""
