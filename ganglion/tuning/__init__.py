"""Settings searched for: by trials (random, Optuna's TPE) or in a population that copies its best (PBT, PB2)."""
