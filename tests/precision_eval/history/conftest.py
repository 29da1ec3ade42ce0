from made_versions import run_type, write

__all__ = ["run_type", "write"]
