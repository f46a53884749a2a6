"""Widgets: what screens are made of. They know nothing of stores but what a screen hands them."""
