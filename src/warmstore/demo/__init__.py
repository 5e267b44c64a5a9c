"""One training job, with and without caches: `warmstore demo` runs it."""
