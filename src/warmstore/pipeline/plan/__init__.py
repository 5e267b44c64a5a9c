"""From a profile and budgets to what is cached where, as a table and as a picture."""
