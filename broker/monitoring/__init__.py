"""Monitoring over HTTP: endpoints of both servers, metrics, a page."""
