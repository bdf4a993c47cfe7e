"""Where the wheel's packages lie: the configs of conf/ travel inside the package, as kvbench/conf."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["kvbench*"]), "kvbench.conf"],
    package_dir={"kvbench.conf": "conf"},
)
