"""Right: how an emitted kernel is shown to compute what it promises."""
