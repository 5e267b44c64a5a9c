"""Plans: from a profile and budgets to placements, with a table and a plot."""
