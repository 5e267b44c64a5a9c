"""The remote behind an artifact store: what each host has put there, under signatures."""
