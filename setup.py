"""Everything is in pyproject.toml but the C modules, which cffi can only take from here."""

from setuptools import setup

setup(
    cffi_modules=[
        "kernels/build_native.py:ffibuilder",
        "allocator/build_native.py:ffibuilder",
    ]
)
