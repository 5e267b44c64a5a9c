"""Where compilers look up and save what they compiled, and with which options they run."""
