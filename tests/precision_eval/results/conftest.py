from made_machines import machines
from made_runs import full_run, synthetic

__all__ = ["full_run", "machines", "synthetic"]
