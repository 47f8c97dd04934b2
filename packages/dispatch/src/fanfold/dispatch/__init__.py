"""Say once how a method is spread over ranks and how its results are collected: a registry and a plan, for any data type."""
