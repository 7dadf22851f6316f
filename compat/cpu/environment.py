"""The variables of a CPU run: every process inherits them, nothing leaves this machine."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"


def cpu_environment() -> dict[str, str]:
    """Variables to add to the environment of the process that starts a CPU run.

    Ray actors, SGLang servers and routers inherit them. Nothing here is needed on a GPU.
    """
    return {**_devices(), **_loopback(), **_quiet()}


def _devices() -> dict[str, str]:
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        # SGLang loads NCCL by path at import; a path that does not exist makes it go without.
        "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
        # One core per process: the matrices are tiny and the processes many.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Compiling Miles's log-probability kernels takes longer than every use of them here.
        "TORCHDYNAMO_DISABLE": "1",
        # Ray would otherwise hide a GPU from actors that ask for none, and warn about it.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _loopback() -> dict[str, str]:
    return {
        "SGLANG_HOST_IP": LOOPBACK,
        "MILES_HOST_IP": LOOPBACK,
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def _quiet() -> dict[str, str]:
    return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "WANDB_MODE": "disabled"}
