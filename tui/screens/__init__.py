"""Screens: one for each view of a store, and the dialogs above them."""
