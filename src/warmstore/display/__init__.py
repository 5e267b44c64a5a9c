"""HTML of objects for notebooks: tables, figures and thumbnails."""
