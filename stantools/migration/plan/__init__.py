"""What a migration is going to do: mapping of names, limits and consumers, and the plan file that people review."""
