"""Widgets of the screens. They know nothing of stores beyond the data a screen passes to them."""
