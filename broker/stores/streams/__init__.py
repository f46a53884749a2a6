"""Where streams keep their messages: what is there (`contents`), in memory (`memory`), in files (`files`)."""
