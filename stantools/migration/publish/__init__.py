"""The online way: messages published one by one, for servers where a restore is not permitted."""
