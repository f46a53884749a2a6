"""The file for spark-submit, alone in its directory."""
