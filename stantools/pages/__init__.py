"""Pages of HTML, each one file that needs nothing beside it: what is found in a store, to attach to a ticket.

`html` fills in the templates, which all extend `base.html`; `plots` draws; `storepage` is the page about a store. The
page of `pipeline stats` is made with the same two.
"""
