"""Which torch measured, as benchmarks, so that every set of results says it by itself."""

from __future__ import annotations

from precision_eval import asv


class torch_build:
    def track_torch_version(self) -> int:
        return asv.track_torch_version()

    track_torch_version.version = "1"
    track_torch_version.unit = "major * 1000000 + minor * 1000 + patch"
    track_torch_version.pretty_name = "version of torch"

    def track_is_cuda_build(self) -> int:
        return asv.track_is_cuda_build()

    track_is_cuda_build.version = "1"
    track_is_cuda_build.unit = "1 where torch was built with CUDA"
    track_is_cuda_build.pretty_name = "CUDA build of torch"
