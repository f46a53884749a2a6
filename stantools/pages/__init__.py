"""HTML pages, each a single self-contained file: a report on a store, to attach to a ticket.

`html` fills in the templates, which all extend `base.html`; `plots` draws; `storepage` is the page about a store.
The page of `pipeline stats` uses the same two.
"""
