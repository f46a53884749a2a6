"""What a person who looks around in a store asks: windows of messages, search, timelines, records byte by byte."""
