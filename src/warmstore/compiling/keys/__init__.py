"""Keys of graphs and of calls: all that decides what is compiled."""
