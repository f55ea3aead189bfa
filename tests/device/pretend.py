"""The pretend accelerator `realm:0` (accelerator.cpp), compiled once for each source and version of torch."""

import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import torch
import torchgen
import yaml
from torch.utils import cpp_extension
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

SOURCE = Path(__file__).with_name("accelerator.cpp")
COMPILER = os.environ.get("CXX", "g++")


def compiled() -> Path:
    """The library, compiled unless it is there."""
    digest = sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(cpp_extension.get_default_build_root()) / f"realm_lab_pretend-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        where = [*(f"-I{path}" for path in cpp_extension.include_paths())]
        where += [f"-L{path}" for path in cpp_extension.library_paths()]
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            scratch = Path(folder) / library.name
            command = [COMPILER, "-shared", "-fPIC", "-O0", "-std=c++20", "-w", abi, str(SOURCE), *where]
            subprocess.run([*command, "-lc10", "-ltorch_cpu", "-o", str(scratch)], check=True)
            os.replace(scratch, library)
    return library


def has_compiler() -> bool:
    """True if the library exists or can be built."""
    return shutil.which(COMPILER) is not None


def cpu_only() -> list[str]:
    """The operators that torch's own table gives a kernel on the CPU and none on CUDA."""
    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    names = []
    for entry in yaml.load(table.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
        if "CPU" in keys and "CUDA" not in keys and not any(key.startswith("Composite") for key in keys):
            names.append("aten::" + entry["func"].split("(")[0])
    return names


def load() -> torch.device:
    """Register the device in this process, before its first backward pass."""
    rename_privateuse1_backend("realm")
    torch.ops.load_library(str(compiled()))
    module = ModuleType("torch.realm")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "manual_seed_all": lambda seed: None,  # its operators draw from the CPU's generator
        "_is_in_bad_fork": lambda: False,
        "synchronize": lambda device=None: torch.ops.pretend.synchronize(),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    torch._register_device_module("realm", module)
    generate_methods_for_privateuse1_backend(for_storage=True)
    torch.ops.pretend.refuse(cpu_only())
    return torch.device("realm", 0)
