"""From public sources to checked splits on disk."""
