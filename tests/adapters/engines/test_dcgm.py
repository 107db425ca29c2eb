"""The GPU exporter's page, by content."""

import pytest

from envoy_ext.adapters.engines import NotMetrics, parse_dcgm
from envoy_ext.domain.sample import GpuSample
from tests.adapters.engines.pages import load_page

HEALTHY = (
    GpuSample(
        gpu="0",
        temperature_c=41.0,
        memory_temperature_c=47.0,
        xid=0,
        ecc_double_bit=0.0,
        row_remap_failure=False,
        row_remap_pending=None,
    ),
    GpuSample(
        gpu="1",
        temperature_c=43.0,
        memory_temperature_c=49.0,
        xid=0,
        ecc_double_bit=0.0,
        row_remap_failure=False,
        row_remap_pending=None,
    ),
)


def test_two_healthy_gpus_read_whole() -> None:
    assert parse_dcgm(load_page("dcgm_healthy_h100x2")) == HEALTHY


@pytest.mark.parametrize(
    ("gpus", "found"),
    [((0, 1), HEALTHY), ((1,), HEALTHY[1:]), ((), HEALTHY), ((2,), ()), ((1, 7), HEALTHY[1:])],
)
def test_only_a_replicas_own_gpus_are_given(gpus: tuple[int, ...], found: tuple[GpuSample, ...]) -> None:
    assert parse_dcgm(load_page("dcgm_healthy_h100x2"), gpus) == found


def test_a_blank_is_absent_and_not_hot() -> None:
    assert parse_dcgm(load_page("dcgm_old_exporter_blank_sentinels")) == (
        GpuSample(gpu="0", temperature_c=44.0),
    )


@pytest.mark.parametrize(
    "blank",
    [
        b"2147483632",  # 32 bit: blank, not found, not supported, not permissioned
        b"2147483633",
        b"2147483635",
        b"140737488355328",  # floating point
        b"140737488355330",
        b"9223372036854775792",  # 64 bit
        b"9223372036854775794",
        b"9223372036854775795",
        b"9.223372036854775807e+18",
        b"NaN",
        b"-1",
    ],
)
def test_every_way_to_write_no_value_is_absent(blank: bytes) -> None:
    page = b"".join(
        b'%s{gpu="3"} %s\n' % (name, blank)
        for name in (
            b"DCGM_FI_DEV_GPU_TEMP",
            b"DCGM_FI_DEV_MEMORY_TEMP",
            b"DCGM_FI_DEV_XID_ERRORS",
            b"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            b"DCGM_FI_DEV_ROW_REMAP_FAILURE",
            b"DCGM_FI_DEV_ROW_REMAP_PENDING",
        )
    )
    assert parse_dcgm(page) == (GpuSample(gpu="3"),)


def test_faults_are_read() -> None:
    page = (
        b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 92\n'
        b'DCGM_FI_DEV_XID_ERRORS{gpu="0",err_code="79",err_msg="GPU has fallen off the bus"} 79\n'
        b'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 2\n'
        b'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 1\n'
        b'DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="0"} 1\n'
    )
    (gpu,) = parse_dcgm(page)
    assert gpu == GpuSample("0", 92.0, None, 79, 2.0, True, True)
    assert isinstance(gpu.xid, int)


def test_slices_and_pods_of_one_gpu_are_one_gpu_and_the_worst_speaks() -> None:
    page = (
        b'DCGM_FI_DEV_GPU_TEMP{gpu="0",GPU_I_ID="1",pod="a"} 60\n'
        b'DCGM_FI_DEV_GPU_TEMP{gpu="0",GPU_I_ID="2",pod="b"} 61\n'
        b'DCGM_FI_DEV_XID_ERRORS{gpu="0",GPU_I_ID="1"} 0\n'
        b'DCGM_FI_DEV_XID_ERRORS{gpu="0",GPU_I_ID="2"} 94\n'
    )
    assert parse_dcgm(page) == (GpuSample("0", temperature_c=61.0, xid=94),)


def test_gpus_come_in_the_order_of_their_numbers() -> None:
    page = b"".join(b'DCGM_FI_DEV_GPU_TEMP{gpu="%d"} 40\n' % gpu for gpu in (10, 2, 0))
    assert [gpu.gpu for gpu in parse_dcgm(page)] == ["0", "2", "10"]


def test_a_page_without_gpus_has_none_and_html_is_no_page() -> None:
    assert parse_dcgm(b"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n") == ()
    assert parse_dcgm(b"DCGM_FI_DEV_GPU_TEMP 40\n") == ()
    with pytest.raises(NotMetrics):
        parse_dcgm(b"<html></html>")
