"""Compiles the HLSL of every kernel with DXC, the compiler of DirectX 12, as wgpu calls it.

    python3 translate/dxc.py LIBRARY FOLDER      LIBRARY: libdxcompiler.so; FOLDER: written by translate-kernels

Those that `translate-kernels --compare` runs are also compiled to SPIR-V. Status 0: all compile; 1: some do not.
"""

import ctypes
import json
import os
import sys
import uuid
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

COMPILER = "73e22d93-e6ce-47f3-b5bf-f0664f39c1b0"
ICOMPILER3 = "228b4687-5a6a-4730-900c-9702b2203f54"
IRESULT = "58346cda-dde7-4497-9461-6f87af5e0659"
UTF8 = 65001
# Places in the tables of functions. Outside of Windows two destructors follow the three functions of IUnknown.
RELEASE, COMPILE = 2, 5
GET_STATUS, GET_RESULT, GET_ERRORS = 5, 6, 7
GET_POINTER, GET_SIZE = 5, 6

# As wgpu 30 calls it (wgpu-hal, dx12/shader_compilation.rs).
ARGUMENTS = ["-HV", "2018", "-no-warnings", "-Ges"]
SPIRV = ["-spirv", "-fspv-target-env=vulkan1.1", "-fvk-use-dx-layout"]
# DXC itself says this where Microsoft's closed library is missing, which signs.
UNSIGNED = "DXIL.dll not found"


class Source(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("size", ctypes.c_size_t), ("encoding", ctypes.c_uint32)]


def guid(text):
    return ctypes.create_string_buffer(uuid.UUID(text).bytes_le, 16)


def call(thing, place, result, *arguments):
    """Calls a function of a COM object."""
    table = ctypes.cast(thing, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
    kinds = [ctypes.c_void_p] + [kind for kind, _ in arguments]
    function = ctypes.CFUNCTYPE(result, *kinds)(table[place])
    return function(thing, *[value for _, value in arguments])


def pointer(to):
    return ctypes.c_void_p, ctypes.addressof(to)


def blob(result, place):
    """Returns the bytes of one of a result's outputs."""
    found = ctypes.c_void_p()
    call(result, place, ctypes.c_int32, pointer(found))
    if not found:
        return b""
    size = call(found, GET_SIZE, ctypes.c_size_t)
    content = ctypes.string_at(call(found, GET_POINTER, ctypes.c_void_p), size)
    call(found, RELEASE, ctypes.c_uint32)
    return content


class Compiler:
    def __init__(self, library):
        self.compiler = ctypes.c_void_p()
        create = ctypes.CDLL(library).DxcCreateInstance
        if create(guid(COMPILER), guid(ICOMPILER3), ctypes.byref(self.compiler)) != 0:
            raise OSError(f"{library} has no IDxcCompiler3")

    def compile(self, text, arguments):
        """Returns the compiled bytes, or None, and what the compiler said."""
        source = Source(text, len(text), UTF8)
        listed = (ctypes.c_wchar_p * len(arguments))(*arguments)
        result, status, kind = ctypes.c_void_p(), ctypes.c_int32(), guid(IRESULT)
        failed = call(
            self.compiler, COMPILE, ctypes.c_int32,
            pointer(source), pointer(listed), (ctypes.c_uint32, len(arguments)), (ctypes.c_void_p, None),
            pointer(kind), pointer(result),
        )
        if failed != 0 or not result:
            return None, f"IDxcCompiler3::Compile: {failed:#x}"
        call(result, GET_STATUS, ctypes.c_int32, pointer(status))
        said = blob(result, GET_ERRORS).decode(errors="replace").rstrip("\0").strip()
        compiled = blob(result, GET_RESULT) if status.value == 0 else None
        call(result, RELEASE, ctypes.c_uint32)
        return compiled, said


COMPILERS = {}


def check(task):
    """Compiles a file; returns what is wrong with it."""
    library, folder, profile, file, entry, spirv, name = task
    compiler = COMPILERS.setdefault(library, None) or Compiler(library)
    COMPILERS[library] = compiler
    text = Path(folder, file).read_bytes()
    arguments = ["-E", entry, "-T", profile, *ARGUMENTS]
    compiled, said = compiler.compile(text, arguments)
    if compiled is None or not compiled.startswith(b"DXBC") or (said and UNSIGNED not in said):
        return f"{name} ({file}): {said or 'no DXIL'}"
    if spirv:
        compiled, said = compiler.compile(text, arguments + SPIRV)
        if compiled is None or said:
            return f"{name} ({file}), SPIR-V: {said}"
        Path(folder, file).with_suffix(".spv").write_bytes(compiled)
    return None


def main():
    library, folder = sys.argv[1:]
    catalogue = json.loads(Path(folder, "kernels.json").read_text())
    tasks = {}
    for kernel in (kernel for text in catalogue["texts"] for kernel in text["kernels"]):
        hlsl = kernel["hlsl"]
        for file, spirv in [(hlsl["file"], kernel["compared"]), (hlsl["checked"], False)]:
            spirv = spirv or file in tasks and tasks[file][5]
            tasks[file] = (library, folder, catalogue["profile"], file, hlsl["entry"], spirv, kernel["name"])
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        failures = [wrong for wrong in pool.map(check, tasks.values(), chunksize=8) if wrong]
    for failure in failures:
        print(failure)
    print(f"{len(tasks)} texts of HLSL by DXC, {catalogue['profile']}: {len(failures)} do not compile")
    return 1 if failures or not tasks else 0


if __name__ == "__main__":
    sys.exit(main())
