"""Plans for changes, as wizards without a screen: form, preview, confirmation, run, result.

A wizard gets a plan from the library and carries it out. It is independent of the terminal, so that tests need none;
`tui.screens.wizard` shows it.
"""
