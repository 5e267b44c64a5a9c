"""Why a key was missed: what it was made of, and what was looked up."""
