"""Ranks, worker groups and resource pools; a backend contract of one page and backends that need nothing else."""
