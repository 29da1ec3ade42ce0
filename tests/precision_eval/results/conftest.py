from made_machines import machines
from made_runs import full_run, synthetic
from made_versions import run_type, write

__all__ = ["full_run", "machines", "run_type", "synthetic", "write"]
