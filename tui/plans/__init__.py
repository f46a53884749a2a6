"""Plans: what changes something, as wizards without a screen: choose, look at what would happen, confirm, run, result.

A wizard asks the library for a plan and carries it out; nothing here knows the terminal, so all of it is tested without
one. `tui.screens.wizard` shows it.
"""
