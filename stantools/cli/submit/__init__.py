"""Beside nothing else: what spark-submit runs."""
