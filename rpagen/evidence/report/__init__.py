"""One page that shows what is known of every variant, made from the records of docs/evidence.

`typed` and `formats` read the records, `kernels` says which kernels are at hand, `view` computes
all that the page says, `page` puts it through `page.html.j2`, which decides which elements exist.
"""
