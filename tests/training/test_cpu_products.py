"""Matrix products by oneDNN give what torch's own kernels give, and only processors that gain use them."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from container.job.launch.workers import DEFAULTS
from container.training import cpu_products
from container.training.cpu_products import choose_matrix_products

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
INTEL, AMD = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n"


def in_a_process_of_its_own(script: str, **variables: str) -> str:
    """Run a script, because the kernels cannot be put back in this process, and return its output."""
    prelude = """
        import torch
        from container.training.cpu_products import use_onednn

        torch.manual_seed(0)

        def operations(function):
            with torch.profiler.profile(acc_events=True) as profile:
                result = function()
            return result, {event.name for event in profile.events()}
    """
    source = textwrap.dedent(prelude) + textwrap.dedent(script)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True, text=True, check=False, env=os.environ | variables,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        ((CPU, "AVX512", AMD), True),
        ((CPU, "AVX512", INTEL), False),
        ((CPU, "AVX2", AMD), False),
        ((GPU, "AVX512", AMD), False),
        ((CPU, "AVX512", None), False),
    ],
)
def test_amd_processors_with_avx512_use_onednn(monkeypatch, tmp_path, machine, chosen):
    device, capability, processor = machine
    calls, cpu_info = [], tmp_path / "cpuinfo"
    if processor is not None:
        cpu_info.write_text(processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(cpu_products, "use_onednn", lambda: calls.append(True))
    choose_matrix_products(device, cpu_info)
    assert bool(calls) == chosen


def test_another_interface_of_onednn_leaves_the_products_to_torch(monkeypatch):
    def changed(left, right, bias):
        raise TypeError

    monkeypatch.setattr(cpu_products, "_linear", changed)
    assert not cpu_products.use_onednn()
    assert not cpu_products._registered


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_its_gradients_are_those_of_torch(bias):
    in_a_process_of_its_own(f"""
        layer = torch.nn.Linear(128, 256, bias={bias})
        x = torch.randn(500, 128, requires_grad=True)

        def passes():
            y = layer(x)
            return (y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]))

        expected = passes()
        use_onednn()
        found, names = operations(passes)
        assert "mkldnn::_linear_pointwise" in names
        for each, other in zip(found, expected, strict=True):
            assert each.is_contiguous()
            torch.testing.assert_close(each, other, rtol=1e-5, atol=2e-3 * other.std().item())
    """)


@pytest.mark.parametrize(
    "product",
    [
        "torch.mm(small, right)",
        "torch.mm(left.double(), right.double())",
        "torch.mm(left.bfloat16(), right.bfloat16())",
        "torch.mm(left.T.contiguous().T, right)",
        "torch.addmm(bias, left, right, alpha=2)",
        "torch.addmm(bias, left, right, beta=0.5)",
        "torch.addmm(bias.expand(500, 256), left, right)",
        "torch.addmm(bias[:1], left, right)",
        "torch.mm(left[:0], right)",
        "torch.mm(left[:, :0], right[:0])",
    ],
)
def test_other_products_are_computed_by_torch(product):
    in_a_process_of_its_own(f"""
        left, right, bias = torch.randn(500, 128), torch.randn(128, 256), torch.randn(256)
        small = left[:10]
        expected = {product}
        use_onednn()
        found, names = operations(lambda: {product})
        assert "mkldnn::_linear_pointwise" not in names
        assert torch.equal(found, expected)
    """)


@pytest.mark.parametrize("right", ["large[:128, ::2]", "large[::2, :256]", "large.T[5:133, :256]", "large[:128, :1]"])
def test_a_view_gives_the_products_of_its_numbers(right):
    in_a_process_of_its_own(f"""
        large, left, bias = torch.randn(256, 512), torch.randn(500, 128), torch.randn(512)[::2]
        right = {right}.expand(128, 256)
        expected = torch.addmm(bias, left, right)
        use_onednn()
        found, names = operations(lambda: torch.addmm(bias, left, right))
        assert "mkldnn::_linear_pointwise" in names
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    """)


@pytest.mark.parametrize("product", ["torch.mm(left, right[1:])", "torch.addmm(right[0, 1:], left, right)"])
def test_shapes_that_do_not_match_are_an_error_as_in_torch(product):
    in_a_process_of_its_own(f"""
        def message():
            try:
                {product}
            except RuntimeError as error:
                return str(error)

        left, right = torch.randn(500, 128), torch.randn(128, 256)
        expected = message()
        use_onednn()
        assert expected and message() == expected
    """)


def test_workers_keep_kernels_of_few_shapes_only():
    growth = """
        import psutil

        use_onednn()
        right = torch.randn(256, 256)
        for rows in range(1000, 1020):
            torch.mm(torch.ones(rows, 256), right)
        before = psutil.Process().memory_info().rss
        for rows in range(1020, 1520):
            torch.mm(torch.ones(rows, 256), right)
        print(psutil.Process().memory_info().rss - before)
    """
    few = {name: value for name, value in DEFAULTS.items() if name.endswith("CACHE_CAPACITY")}
    limited, unlimited = (
        int(in_a_process_of_its_own(growth, **{name: capacity or value for name, value in few.items()}))
        for capacity in ("", "1024")
    )
    assert limited < unlimited / 4
