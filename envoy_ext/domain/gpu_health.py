"""Is the hardware under a replica sound? Read from the exporter's word on each of its GPUs.

Not every XID is the GPU's fault. NVIDIA's own Kubernetes device plugin leaves a GPU in service after
the codes below, which are errors of the program that ran on it: if that program was the engine, the
engine's own signals say so. They are shown, and nothing follows from them. The exporter's gauge keeps
the last code until the driver is loaded again, so a hardware code keeps a replica out until then.
https://github.com/NVIDIA/k8s-device-plugin (DP_DISABLE_HEALTHCHECKS), https://docs.nvidia.com/deploy/xid-errors/
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.readiness_reasons import ReadinessReason
from envoy_ext.domain.sample import GpuSample
from envoy_ext.domain.signals import Band, Level, read_flag, read_known

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})


@dataclass(frozen=True, slots=True)
class GpuJudgement:
    """One reason, what the GPUs say of it, and the sentence for people."""

    reason: ReadinessReason
    level: Level
    text: str


def judge_gpus(gpus: Sequence[GpuSample], temperature: Band) -> tuple[GpuJudgement, ...]:
    """What a replica's GPUs say; the worst one speaks for all. None at all says nothing."""
    return (
        _judge_temperature(gpus, temperature),
        _judge_xid(gpus),
        _judge(gpus, ReadinessReason.GPU_ECC, _has_double_bit_errors, "has double-bit memory errors"),
        _judge(gpus, ReadinessReason.GPU_ROW_REMAP, _has_failed_remap, "could not remap a bad memory row"),
    )


def list_remarks(gpus: Sequence[GpuSample]) -> tuple[GpuJudgement, ...]:
    """What is worth knowing of the GPUs and keeps nobody from working."""
    remarks = []
    for gpu in gpus:
        xid = _read_xid(gpu)
        if xid in APPLICATION_XIDS:
            text = f"GPU {gpu.gpu} reported XID {xid}, an error of the program on it"
            remarks.append(GpuJudgement(ReadinessReason.GPU_XID_APPLICATION, Level.BAD, text))
    waiting = [gpu.gpu for gpu in gpus if gpu.row_remap_pending]
    if waiting:
        text = f"GPU {', '.join(waiting)} needs a reset to remap a memory row"
        remarks.append(GpuJudgement(ReadinessReason.GPU_ROW_REMAP_PENDING, Level.BAD, text))
    return tuple(remarks)


def _judge_temperature(gpus: Sequence[GpuSample], band: Band) -> GpuJudgement:
    known = [(value, gpu.gpu) for gpu in gpus if (value := read_known(gpu.temperature_c)) is not None]
    if not known:
        return GpuJudgement(ReadinessReason.GPU_TEMPERATURE, Level.UNKNOWN, "")
    hottest, name = max(known)
    text = f"GPU {name} has {hottest:g} °C (leaves at {band.leave_at:g}, returns at {band.return_at:g})"
    return GpuJudgement(ReadinessReason.GPU_TEMPERATURE, band.read_level(hottest), text)


def _judge_xid(gpus: Sequence[GpuSample]) -> GpuJudgement:
    codes = [(gpu.gpu, xid) for gpu in gpus if (xid := _read_xid(gpu)) is not None]
    broken = [f"GPU {name} reported XID {xid}" for name, xid in codes if xid and xid not in APPLICATION_XIDS]
    level = read_flag(bool(broken) if codes else None)
    return GpuJudgement(ReadinessReason.GPU_XID, level, ", ".join(broken))


def _judge(
    gpus: Sequence[GpuSample],
    reason: ReadinessReason,
    read: Callable[[GpuSample], bool | None],
    text: str,
) -> GpuJudgement:
    answers = [(gpu.gpu, answer) for gpu in gpus if (answer := read(gpu)) is not None]
    bad = [name for name, answer in answers if answer]
    level = read_flag(bool(bad) if answers else None)
    return GpuJudgement(reason, level, f"GPU {', '.join(bad)} {text}" if bad else "")


def _read_xid(gpu: GpuSample) -> int | None:
    known = read_known(gpu.xid)
    return None if known is None else int(known)


def _has_double_bit_errors(gpu: GpuSample) -> bool | None:
    known = read_known(gpu.ecc_double_bit)
    return None if known is None else known > 0


def _has_failed_remap(gpu: GpuSample) -> bool | None:
    return gpu.row_remap_failure
