"""Loading: orders, walks along them, and mixes of sources. The public names live in `warmstore`."""
