"""A job's results on disk: writing them per rollout, summarising them per job, reading them back."""
