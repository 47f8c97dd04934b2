"""Worker groups on a Ray cluster: placed, named, watched, detached and cleaned up."""
