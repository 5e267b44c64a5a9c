"""What warmstore costs beside the limit and beside its peers: one file a question, one report for all."""
