"""What the histories of caches say: read and summed for `warmstore top`, and drawn as a page by `warmstore report`."""
